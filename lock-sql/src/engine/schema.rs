//! Whether a table has what the statements rely on.

use lock_core::Result;

use super::value::Row;

/// A column that the statements rely on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) not_null: bool,
    /// What else the dialect wants of it.
    pub(crate) more: i64,
}

/// Checks the columns of a table: rows of name, type, NOT NULL, whether it may be left out, and what else
/// the dialect asks. Further columns are fine if they may be left out. `fits` says what is wrong with
/// NOT NULL and with what else was asked; the outer error is one of the rows themselves.
pub(crate) fn check_columns(
    wanted: &[Column],
    rows: &[Row],
    fits: impl Fn(&Column, bool, i64) -> Result<(), String>,
) -> Result<Result<(), String>> {
    let mut missing = wanted.to_vec();
    for row in rows {
        let (name, kind) = (row.text(0)?, row.text(1)?);
        let (not_null, optional, more) = (row.flag(2)?, row.flag(3)?, row.int(4)?);
        let Some(at) = missing.iter().position(|column| column.name == name) else {
            if optional {
                continue;
            }
            return Ok(Err(format!("it has a column {name} that we cannot fill")));
        };
        let column = missing.swap_remove(at);
        if kind != column.kind {
            return Ok(Err(format!("its column {name} differs")));
        }
        if let Err(fault) = fits(&column, not_null, more) {
            return Ok(Err(fault));
        }
    }
    Ok(match missing.first() {
        Some(column) => Err(format!("it has no column {}", column.name)),
        None => Ok(()),
    })
}
