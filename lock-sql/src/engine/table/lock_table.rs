//! The lock table of a database: its statements, as a dialect writes them.
//!
//! The name is the only text that is put into a statement. Values are bound.

use std::sync::atomic::AtomicBool;

use crate::engine::table::preparation::Preparation;
use crate::engine::table::settings::{BATCH, SEEN, SWEPT, TableName};
use crate::engine::wire::errors::{CodeRule, ErrorTexts};
use crate::engine::wire::statement::{SqlStatement, Values};

/// What a dialect writes about its table. The texts may contain the terms of its [`Preparation`].
pub(crate) struct TableTexts {
    /// The statement that creates the table, for people too.
    pub(crate) create: &'static str,
    /// The statements that grant the rights.
    pub(crate) grant: &'static str,
    /// table → what is wrong with it, or NULL. No row if it does not exist.
    pub(crate) look: &'static str,
    pub(crate) statements: &'static [(StatementName, &'static str)],
    /// The codes that mean that we may not create it, and that another client is creating it.
    pub(crate) creating: [&'static [&'static str]; 2],
    /// What the codes of its errors mean.
    pub(crate) rules: &'static [CodeRule],
    pub(crate) hints: [&'static str; 2],
}

/// The statements of a dialect, each by its name.
macro_rules! statements {
    ($($name:ident: $text:expr,)*) => {
        &[$((crate::engine::table::lock_table::StatementName::$name, $text)),*]
    };
}
pub(crate) use statements;

/// What a statement does: what it gets → what it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatementName {
    /// name, owner, ttl, label → one number: the fence, or how long another client's lease lasts,
    /// as a negative one. No row: the dialect finds out why.
    Acquire,
    /// PostgreSQL: as `Acquire`, whatever the row says: takes a free lock, makes the row, finds our own, or puts
    /// the client on the list. Answers a number, and the row as `Look` does.
    AcquireOrQueue,
    /// MySQL: as `Acquire`, of a name that has no row, and so never without an answer.
    AcquireNew,
    /// name, owner or NULL for any, fence or 0 for any → a number: whether the lease was running.
    /// No row if there is no such hold.
    Release,
    /// A forced release, if that is a different statement, which tells the holder.
    ReleaseByForce,
    /// PostgreSQL: name, client. The client waits no more.
    Leave,
    /// PostgreSQL: name. A free lock's next client is told, since this one does not want it.
    Pass,
    /// name → name, owner, fence, time left, time since the start, label. If the lease runs on a
    /// clock that cannot be read here, the time left is NULL, and the clock comes last.
    Look,
    /// names → as `Look`, the rows that there are; the fence of the mark is a floor of names without one. What
    /// it shows is true of the primary at a moment of the call (clause C18), where `Look` is a hint: it goes to
    /// no other server, and judges a lease by a reading of the clock from before it sees the rows. With a later
    /// reading, a lease that was renewed in between would have ended.
    LookNow,
    /// start of the stored name, its length in bytes, whether only the empty prefix is meant → as
    /// `Look`.
    List,
    /// If `Look` is not enough: name, owner, fence or 0, how many fences it has at least besides the last → the
    /// time left. A statement that writes or locks: a read may have gone to a standby that lags behind.
    Confirm,
    /// name, owner, fence or 0, ttl → a row if it was renewed. Waits for the row.
    RenewAlone,
    /// PostgreSQL: names, owners, fences, ttls, as arrays → name, what was found. SQLite: leases → the names of
    /// those that were renewed.
    RenewBatch,
    /// MySQL: names, keys of the holds, ttl → a number: when the leases that were renewed end at the soonest. No row
    /// if none was. Leaves out rows that another client has locked.
    RenewUnlocked,
    /// MySQL: names, that number → rows of name, key of the hold, and 0 if its lease has ended, 1 if it runs, 2 if it
    /// runs until then. Shows the primary, as `LookNow` does, and waits for no row.
    ReadRenewed,
    /// after, retention → name, fence, whether it can be removed.
    SweepPage,
    /// fence: raises the mark to it.
    SweepFold,
    /// names, a fence that was folded before, retention.
    SweepDelete,
    /// Writes nothing, and fails where writing would.
    Probe,
    /// PostgreSQL: the quoted table → how many row versions nobody needs any more, and are still there.
    DeadRows,
    /// SQLite: copies the log into the file, as far as no reader needs the file as it is. It blocks no one.
    Save,
}

impl StatementName {
    /// How many places its lists may have. Only these numbers, so that a connection prepares few statements.
    pub(crate) fn sizes(self) -> &'static [usize] {
        match self {
            Self::RenewUnlocked | Self::ReadRenewed => &[8, 32, 128, BATCH],
            // And the mark.
            Self::LookNow => &[8, SEEN + 1],
            _ => &[SWEPT],
        }
    }
}

/// The table, and all that is sent to it.
#[derive(Debug)]
pub(crate) struct LockTable {
    pub(crate) names: ErrorTexts,
    /// Each once for each of its sizes.
    pub(crate) statements: Vec<(StatementName, usize, SqlStatement)>,
    /// As the database looks it up.
    name: String,
    /// See [`TableTexts`].
    pub(super) look: SqlStatement,
    pub(super) creating: [&'static [&'static str]; 2],
    pub(super) may_create: bool,
    /// It was found, and is ours.
    pub(crate) checked: AtomicBool,
    /// It is not made again if it goes: whoever dropped it may be about to restore it.
    pub(crate) stays_gone: AtomicBool,
}

impl LockTable {
    /// `at`: the database as errors name it.
    pub(crate) fn new(
        texts: &TableTexts,
        prepared: &Preparation,
        at: String,
        table: &TableName,
        may_create: bool,
    ) -> Self {
        let names = ErrorTexts {
            table: format!("the table {} in {at}", prepared.text("{t}")),
            grant: prepared.text(texts.grant),
            create: prepared.text(texts.create),
            rules: texts.rules,
            hints: texts.hints,
            at,
        };
        let sized = |(name, text): &(StatementName, &str)| {
            let (name, sizes) = (*name, name.sizes().iter());
            sizes
                .map(move |size| (name, *size, prepared.statement(*size, text)))
                .collect::<Vec<_>>()
        };
        Self {
            names,
            statements: texts.statements.iter().flat_map(sized).collect(),
            name: prepared.looked_up(table),
            look: prepared.statement(0, texts.look),
            creating: texts.creating,
            may_create,
            checked: AtomicBool::new(false),
            stays_gone: AtomicBool::new(false),
        }
    }

    /// For statements about the table.
    pub(crate) fn values(&self) -> Values<'_> {
        Values::default().with("table", &*self.name)
    }

    /// `None` if this dialect does without it.
    pub(crate) fn find(&self, name: StatementName) -> Option<&SqlStatement> {
        self.statements.iter().find(|(known, ..)| *known == name).map(|(_, _, found)| found)
    }

    /// The statement, of a dialect that has it.
    pub(crate) fn statement(&self, name: StatementName) -> &SqlStatement {
        self.find(name).unwrap_or_else(|| panic!("BUG: no statement {name:?}"))
    }

    /// The smallest with at least so many places.
    pub(crate) fn sized(&self, name: StatementName, places: usize) -> &SqlStatement {
        let fits =
            |(known, size, _): &&(StatementName, usize, _)| *known == name && *size >= places;
        self.statements.iter().find(fits).map_or_else(|| self.statement(name), |(.., found)| found)
    }
}
