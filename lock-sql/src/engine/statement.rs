//! Statements with named parameters, and the values bound to them.

use std::fmt;
use std::sync::Arc;

use super::value::Value;

/// How a database writes the parameters of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// `$1`. A list is one array.
    Dollars,
    /// `?1`. A list has a place for each of its items.
    Numbers,
    /// `?`, even for a repeated name. Lists as above.
    Marks,
}

/// A statement for one table, prepared once per connection. Written with `:name` for a place and
/// `:[names]` for the places of a list.
#[derive(Clone)]
pub(crate) struct Statement {
    /// With names.
    text: Arc<str>,
    sql: Arc<str>,
    places: Vec<Place>,
}

/// What is bound: the value of this name, or this item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place(String, Option<usize>);

impl Statement {
    /// `size`: how many places a list has.
    pub(crate) fn new(style: Places, size: usize, text: &str) -> Self {
        let (mut sql, mut places) = (String::with_capacity(text.len()), Vec::new());
        let mut rest = text;
        while let Some(at) = rest.find(':') {
            let (before, after) = rest.split_at(at);
            sql.push_str(before);
            let is_list = after.starts_with(":[");
            let name = &after[1 + usize::from(is_list)..];
            let end = name.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            let (name, tail) = name.split_at(end.unwrap_or(name.len()));
            if name.is_empty() {
                // A cast, or the bounds of an array.
                let colons = after.len() - after.trim_start_matches(':').len();
                let next = after[colons..].find(':').map_or(after.len(), |next| colons + next);
                sql.push_str(&after[..next]);
                rest = &after[next..];
                continue;
            }
            let items: Vec<_> = match is_list {
                true => (0..size).map(Some).collect(),
                false => vec![None],
            };
            for (nth, item) in items.into_iter().enumerate() {
                if nth > 0 {
                    sql.push(',');
                }
                let place = Place(name.to_owned(), item);
                let known = places.iter().position(|known| *known == place);
                let number = match known.filter(|_| style != Places::Marks) {
                    Some(at) => at + 1,
                    None => {
                        places.push(place);
                        places.len()
                    }
                };
                sql.push_str(&match style {
                    Places::Dollars => format!("${number}"),
                    Places::Numbers => format!("?{number}"),
                    Places::Marks => "?".to_owned(),
                });
            }
            rest = if is_list { tail.trim_start_matches(']') } else { tail };
        }
        sql.push_str(rest);
        Self { text: text.into(), sql: sql.into(), places }
    }

    /// The statement with its values, ready to be sent.
    pub(crate) fn bind(&self, values: &Values) -> Query {
        let value = |Place(name, item): &Place| {
            let value = values.get(name);
            debug_assert!(value.is_some(), "nothing is bound to {name} in {}", self.text);
            match (value, item) {
                (Some(Value::List(items)), Some(item)) => {
                    items.get(*item).or(items.last()).cloned()
                }
                (value, _) => value.cloned(),
            }
            .unwrap_or(Value::Null)
        };
        Query { sql: Arc::clone(&self.sql), values: self.places.iter().map(value).collect() }
    }

    /// The statement with NULL in all its places.
    pub(crate) fn bare(&self) -> Query {
        Query { sql: Arc::clone(&self.sql), values: vec![Value::Null; self.places.len()] }
    }
}

/// As it was written.
impl fmt::Debug for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A statement with its values.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) sql: Arc<str>,
    pub(crate) values: Vec<Value>,
}

/// The bound values, by name. If a list has fewer items than the statement has places, its last
/// item is repeated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values(Vec<(&'static str, Value)>);

impl Values {
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((name, value.into()));
        self
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// The name of the row that holds the greatest fence of all deleted rows. No lock can have this
/// name: U+0001 is a control character, and not the one that separates prefix and name.
pub(crate) const MARK: &str = "\u{1}fence";
/// How many rows are read in one step of a sweep.
pub(crate) const PAGE: usize = 512;
/// How many rows one statement deletes.
pub(crate) const SWEPT: usize = 64;

/// The statements that all dialects have: their texts, or as prepared for one table.
#[derive(Clone, Debug)]
pub(crate) struct Statements<T = Statement> {
    /// name, owner, ttl, label → one number: the fence, or how long another client's lease lasts,
    /// as a negative one. No row: see `Dialect::missing`.
    pub(crate) acquire: T,
    /// name, owner or NULL for any, fence or 0 for any → a number: whether the lease was running.
    /// No row if there is no such hold.
    pub(crate) release: T,
    /// A forced release, if that is a different statement, which tells the holder.
    pub(crate) force: Option<T>,
    /// name → name, owner, fence, time left, time since the start, label. If the lease runs on a
    /// clock that cannot be read here, the time left is NULL, and the clock comes last.
    pub(crate) look: T,
    /// start of the stored name, its length in bytes, whether only the empty prefix is meant → as
    /// `look`.
    pub(crate) list: T,
    /// name, owner, fence or 0 → the time left. A statement that writes or locks: a read may have
    /// gone to a standby that lags behind.
    pub(crate) confirm: Option<T>,
    /// after, retention → name, fence, whether it can be removed.
    pub(crate) sweep_page: T,
    /// fence: raises the mark to it.
    pub(crate) sweep_fold: T,
    /// names, a fence that was folded before, retention.
    pub(crate) sweep_delete: T,
    /// Writes nothing, and fails where writing would.
    pub(crate) probe: T,
}

impl<T> Statements<T> {
    pub(crate) fn map<U>(&self, make: impl Fn(&T) -> U) -> Statements<U> {
        Statements {
            acquire: make(&self.acquire),
            release: make(&self.release),
            force: self.force.as_ref().map(&make),
            look: make(&self.look),
            list: make(&self.list),
            confirm: self.confirm.as_ref().map(&make),
            sweep_page: make(&self.sweep_page),
            sweep_fold: make(&self.sweep_fold),
            sweep_delete: make(&self.sweep_delete),
            probe: make(&self.probe),
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        let Self { acquire, release, look, list, sweep_page, sweep_fold, sweep_delete, .. } = self;
        [acquire, release, look, list, sweep_page, sweep_fold, sweep_delete, &self.probe]
            .into_iter()
            .chain(&self.force)
            .chain(&self.confirm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_each_database_wants_them() {
        let text = "a = :name::text AND :fence IN (0, :name) AND b[2:] IN (:[names])";
        for (style, wanted) in [
            (Places::Dollars, "a = $1::text AND $2 IN (0, $1) AND b[2:] IN ($3,$4)"),
            (Places::Numbers, "a = ?1::text AND ?2 IN (0, ?1) AND b[2:] IN (?3,?4)"),
            (Places::Marks, "a = ?::text AND ? IN (0, ?) AND b[2:] IN (?,?)"),
        ] {
            assert_eq!(&*Statement::new(style, 2, text).sql, wanted);
        }
        let values = Values::default()
            .with("names", Value::List(vec!["x".into()]))
            .with("name", "n")
            .with("fence", 7);
        let bound = Statement::new(Places::Marks, 2, text).bind(&values).values;
        let wanted = [Value::from("n"), 7.into(), "n".into(), "x".into(), "x".into()];
        assert!(bound == wanted, "by name, and the last item again");
    }
}
