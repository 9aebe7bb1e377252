//! The lock table of a database, as a dialect describes it.

use std::sync::atomic::AtomicBool;

use super::error::{Names, Rule};
use super::preparation::Preparation;
use super::settings::Settings;
use super::statement::{Statement, Statements, Values};

/// What a dialect writes about its table. The texts may contain the terms of its [`Preparation`].
pub(crate) struct Texts {
    /// The statement that creates the table, for people too.
    pub(crate) create: &'static str,
    /// The statements that grant the rights.
    pub(crate) grant: &'static str,
    /// table → what is wrong with it, or NULL. No row if it does not exist.
    pub(crate) look: &'static str,
    pub(crate) statements: Statements<&'static str>,
    /// The codes that mean that we may not create it, and that another client is creating it.
    pub(crate) creating: [&'static [&'static str]; 2],
    /// See [`Names`].
    pub(crate) rules: &'static [Rule],
    pub(crate) hints: [&'static str; 2],
}

/// The table, and all that is sent to it. `O`: the statements that only one dialect has.
#[derive(Debug)]
pub(crate) struct LockTable<O> {
    pub(crate) names: Names,
    pub(crate) statements: Statements,
    pub(crate) own: O,
    /// As the database looks it up.
    name: String,
    /// See [`Texts`].
    pub(super) look: Statement,
    pub(super) creating: [&'static [&'static str]; 2],
    pub(super) may_create: bool,
    /// It was found, and is ours.
    pub(super) checked: AtomicBool,
}

impl<O> LockTable<O> {
    /// `at`: the database as errors name it.
    pub(crate) fn new(
        texts: &Texts,
        prepared: &Preparation,
        at: String,
        settings: &Settings,
        own: O,
    ) -> Self {
        let names = Names {
            table: format!("the table {} in {at}", prepared.text("{t}")),
            grant: prepared.text(texts.grant),
            create: prepared.text(texts.create),
            rules: texts.rules,
            hints: texts.hints,
            at,
        };
        Self {
            names,
            statements: texts.statements.map(|text| prepared.statement(text)),
            own,
            name: prepared.looked_up(&settings.table),
            look: prepared.statement(texts.look),
            creating: texts.creating,
            may_create: settings.create_table,
            checked: AtomicBool::new(false),
        }
    }

    /// For statements about the table.
    pub(crate) fn values(&self) -> Values {
        Values::default().with("table", &*self.name)
    }
}
