//! The parameters of a store's URL, each declared once: its name, what it is for, its default, and which values it takes.
//!
//! ```
//! use std::time::Duration;
//! use lock_kit::settings::{Between, Parameter};
//! use lock_kit::url::Params;
//!
//! const GRACE: Parameter<Between> = Parameter {
//!     name: "lock_grace",
//!     text: "how long a silent holder keeps its lock",
//!     default: "`2s`",
//!     values: Duration::from_secs(1)..=Duration::from_secs(60),
//! };
//!
//! let (_, mut params) = Params::split("demo://host?lock_grace=90s")?;
//! let grace = GRACE.read(&mut params)?;
//! params.finish("demo", &[GRACE.name])?;
//! let error = GRACE.check(grace).unwrap_err();
//! assert_eq!(error.to_string(), "the grace is 90s: it must be between 1s and 60s");
//! assert_eq!(GRACE.row(), "| `lock_grace` | how long a silent holder keeps its lock | `2s` |\n");
//! # Ok::<(), lock_core::Error>(())
//! ```

use std::ops::RangeInclusive;
use std::time::Duration;

use super::Params;
use lock_core::{Error, Result};

/// One parameter. `values` says how its value is read: [`Between`], [`Words`], [`Text`] or [`ReadBy`].
#[derive(Clone, Debug)]
pub struct Parameter<V: 'static> {
    /// Its name in the URL.
    pub name: &'static str,
    /// What it is for, in Markdown.
    pub text: &'static str,
    /// The value without it, in Markdown.
    pub default: &'static str,
    /// Which values it takes.
    pub values: V,
}

/// A duration within limits. Errors call it after its name: `lock_tick_time` is "the tick time".
pub type Between = RangeInclusive<Duration>;

/// One of these words, and what each stands for.
pub type Words<W> = &'static [(&'static str, W)];

/// A text of which this function makes the value, or an error.
pub type ReadBy<T> = fn(&str) -> Result<T>;

/// Any text: a name, or the path of a file.
#[derive(Clone, Copy, Debug)]
pub struct Text;

impl<V> Parameter<V> {
    /// Its row in the table of a README: a test compares the two.
    pub fn row(&self) -> String {
        format!("| `{}` | {} | {} |\n", self.name, self.text, self.default)
    }
}

impl Parameter<Between> {
    /// Takes the value out of the parameters of a URL. Its limits are not checked yet.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if it is no duration.
    pub fn read(&self, params: &mut Params) -> Result<Option<Duration>> {
        params.duration(self.name)
    }

    /// Checks a value from a URL or from a program, if there is one.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) naming the limits if it is beyond one of them.
    pub fn check(&self, value: impl Into<Option<Duration>>) -> Result<()> {
        match value.into() {
            Some(value) if !self.values.contains(&value) => {
                let what = self.name.trim_start_matches("lock_").replace('_', " ");
                let (least, most) = (self.values.start(), self.values.end());
                Err(Error::config(format!(
                    "the {what} is {value:?}: it must be between {least:?} and {most:?}"
                )))
            }
            _ => Ok(()),
        }
    }
}

impl<W: Copy> Parameter<Words<W>> {
    /// Takes the value out of the parameters of a URL.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if it is none of the words.
    pub fn read(&self, params: &mut Params) -> Result<Option<W>> {
        params.choice(self.name, self.values)
    }
}

impl<T> Parameter<ReadBy<T>> {
    /// Takes the value out of the parameters of a URL.
    ///
    /// # Errors
    ///
    /// Those of the function; [`Config`](lock_core::ErrorKind::Config) if the value is not well encoded.
    pub fn read(&self, params: &mut Params) -> Result<Option<T>> {
        params.text(self.name)?.map(|text| (self.values)(&text)).transpose()
    }
}

impl Parameter<Text> {
    /// Takes the value out of the parameters of a URL, percent-decoded.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if it cannot be decoded.
    pub fn read(&self, params: &mut Params) -> Result<Option<String>> {
        params.text(self.name)
    }
}
