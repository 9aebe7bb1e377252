//! The parameters of a store URL.

use std::borrow::Cow;
use std::time::Duration;

use lock_core::{Error, Result};
use percent_encoding::percent_decode_str;

/// The parameters behind the `?`, taken out one by one. What is left is unknown and refused.
#[derive(Debug)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    /// Splits a URL into what stands before the `?` and its parameters.
    pub(crate) fn split(url: &str) -> Result<(&str, Self)> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut parameters = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value =
                percent_decode_str(value).decode_utf8().map(Cow::into_owned).map_err(|_| {
                    Error::config(format!(
                        "the parameter {name} is not UTF-8 after percent-decoding"
                    ))
                })?;
            if parameters.iter().any(|(known, _)| known == name) {
                return Err(Error::config(format!("the parameter {name} is given twice")));
            }
            parameters.push((name.to_owned(), value));
        }
        Ok((base, Self(parameters)))
    }

    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// A duration of more than zero.
    pub(crate) fn duration(&mut self, name: &str) -> Result<Option<Duration>> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match humantime::parse_duration(&value) {
            Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
            _ => Err(Error::config(format!(
                "{name}={value:?} is not a duration: write a number with a unit, such as 500ms or 2s"
            ))),
        }
    }

    /// One of the words that `known` lists.
    pub(crate) fn choice<T: Copy>(&mut self, name: &str, known: &[(&str, T)]) -> Result<Option<T>> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match known.iter().find(|(word, _)| *word == value) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
                Err(Error::config(format!("{name}={value:?} is none of {}", words.join(", "))))
            }
        }
    }

    /// Refuses what nobody has taken out. Only the name is shown: the value may be a secret.
    pub(crate) fn finish(self, scheme: &str, known: &[&str]) -> Result<()> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(Error::config(format!(
                "{scheme} has no parameter {name:?}; it has {}",
                known.join(", ")
            ))),
        }
    }
}
