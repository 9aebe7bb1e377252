//! The table of faults. The numbers are those of the fault matrix in the README.

use super::act::Act::{self, Clock, CutOff, Force, Link, Once, Server, While, Worker};
use super::act::Class::{self, F, K, U, X};
use super::act::{OnLink, OnServer, OnWorker, Which};
use crate::kind::Kind::{
    self, Etcd1, Etcd3, Mariadb, Pgbouncer, Postgres, Redis, RedisReplica, Redlock3, Redlock5,
    Sqlite, Zookeeper1, Zookeeper3,
};
use crate::site::{Switch, Verb};

/// One fault.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) number: u8,
    pub(crate) name: &'static str,
    pub(crate) act: Act,
    /// What is expected of each set-up that it applies to.
    pub(crate) expected: &'static [(Class, &'static [Kind])],
}

impl Row {
    pub(crate) fn class(&self, kind: Kind) -> Option<Class> {
        let found = self.expected.iter().find(|(_, kinds)| kinds.contains(&kind));
        found.map(|(class, _)| *class)
    }
}

const ALL: &[Kind] = &[
    Sqlite,
    Postgres,
    Pgbouncer,
    Mariadb,
    Redis,
    RedisReplica,
    Redlock3,
    Redlock5,
    Etcd1,
    Etcd3,
    Zookeeper1,
    Zookeeper3,
];
/// All but the store that is a file.
const NET: &[Kind] = match ALL {
    [Sqlite, servers @ ..] => servers,
    _ => panic!("the file is no longer the first"),
};
const ONE_SERVER: &[Kind] = &[Postgres, Pgbouncer, Mariadb, Redis, RedisReplica, Etcd1, Zookeeper1];
const SEVERAL: &[Kind] = &[Redlock3, Redlock5, Etcd3, Zookeeper3];
const REDIS: &[Kind] = &[Redis, RedisReplica];
const REDLOCK: &[Kind] = &[Redlock3, Redlock5];
const ANY_REDIS: &[Kind] = &[Redis, RedisReplica, Redlock3, Redlock5];

macro_rules! rows {
    ($($number:literal $name:literal, $act:expr, $($class:ident of $kinds:expr),+;)+) => {
        /// All faults.
        pub(crate) const ROWS: &[Row] = &[
            $(Row { number: $number, name: $name, act: $act, expected: &[$(($class, $kinds)),+] }),+
        ];
    };
}

rows! {
    1 "a holder is killed", Worker(OnWorker::Kill, (5, 10)), K of ALL;
    1 "a client is killed at an await of an acquisition", Worker(OnWorker::Die, (5, 10)), K of ALL;
    2 "a client is stopped for less than a ttl", Worker(OnWorker::Stop, (20, 80)), K of ALL;
    3 "a holder is stopped for more than two ttls", Worker(OnWorker::Stop, (210, 240)), K of ALL;
    4 "a reply comes after more than a ttl", Link(OnLink::HoldReply, (130, 160)), K of NET;
    5 "the runtime of a client is starved for more than a ttl", Worker(OnWorker::Starve, (110, 140)), K of ALL;
    8 "a request is lost with its connection", Link(OnLink::LoseRequest, (10, 30)), K of NET;
    8 "connections are reset", Link(OnLink::Reset, (5, 20)), K of NET;
    8 "connections are closed", Link(OnLink::Fin, (5, 20)), K of NET;
    9 "a reply is lost with its connection", Link(OnLink::LoseReply, (10, 30)), K of NET;
    10 "a link is silent in both directions", Link(OnLink::Silence, (50, 130)), U of NET;
    10 "connections go into a black hole", Link(OnLink::SilencePresent, (60, 130)), U of NET;
    11 "replies do not arrive", Link(OnLink::SilenceReplies, (50, 130)), U of NET;
    12 "every message is late", Link(OnLink::Delay, (80, 160)), K of NET;
    12 "connections are refused", Link(OnLink::Refuse, (40, 100)), U of NET;
    14 "a holder is partitioned for more than a ttl", Worker(OnWorker::Partition, (120, 150)), K of NET;
    15 "notifications are cut off", Once(Verb::EndPushes), K of ANY_REDIS, K of &[Postgres];
    16 "an operator ends all connections", Once(Verb::EndConnections), K of ANY_REDIS, K of &[Postgres, Pgbouncer, Mariadb];
    17 "the only server is frozen", Server(Which::Leader, OnServer::Freeze, (50, 130)), U of ONE_SERVER;
    17 "one server of several is frozen", Server(Which::Other, OnServer::Freeze, (60, 150)), K of SEVERAL;
    17 "most servers are frozen", Server(Which::Majority, OnServer::Freeze, (40, 80)), U of REDLOCK, U of &[Zookeeper3];
    17 "the whole store is locked by another client", While(Switch::Exclusive, (40, 130)), U of &[Sqlite];
    18 "the only server crashes", Server(Which::Leader, OnServer::Crash, (10, 40)), U of ONE_SERVER;
    18 "one server of several crashes", Server(Which::Other, OnServer::Crash, (30, 80)), K of SEVERAL;
    18 "most servers crash", Server(Which::Majority, OnServer::Crash, (10, 30)), U of SEVERAL;
    20 "all data is lost at once", Once(Verb::LoseAll), F of REDIS, F of &[Postgres, Pgbouncer, Mariadb, Sqlite], X of REDLOCK, X of &[Zookeeper1, Zookeeper3];
    20 "the server is started again without its data", Server(Which::Leader, OnServer::Empty, (5, 10)), F of &[Redis];
    20 "one node of a quorum loses its data", Once(Verb::LoseOne(0)), K of REDLOCK;
    20 "one node of a quorum is started again without its data", Server(Which::Other, OnServer::Empty, (5, 10)), K of REDLOCK;
    21 "locks are evicted", Once(Verb::Evict), F of REDIS, X of REDLOCK;
    22 "a replica that lags behind takes over", While(Switch::Lag, (20, 40)), F of &[RedisReplica];
    23 "the leader crashes", Server(Which::Leader, OnServer::Crash, (30, 80)), K of &[Etcd3, Zookeeper3];
    23 "the leadership is moved", Once(Verb::MoveLeader(0)), K of &[Etcd3];
    23 "the leader is frozen for less than a ttl", Server(Which::Leader, OnServer::Freeze, (30, 70)), K of &[Etcd3, Zookeeper3];
    24 "one member is cut off from the others", CutOff((60, 150)), K of &[Etcd3];
    25 "an operator takes a lock from its holder", Force, F of ALL;
    26 "history is compacted and defragmented", Once(Verb::Compact), K of &[Etcd1, Etcd3];
    27 "an old copy of the data is put back", Once(Verb::Restore), X of &[Etcd1];
    28 "the clock of the servers is an hour ahead for a while", Clock(3600, (50, 100)), F of ANY_REDIS, F of &[Postgres, Pgbouncer, Mariadb];
    28 "the clock of the servers is an hour behind for a while", Clock(-3600, (50, 100)), F of ANY_REDIS, F of &[Postgres, Pgbouncer, Mariadb];
    29 "the clock of a client is a day off", Worker(OnWorker::Skew, (5, 10)), K of ALL;
    32 "the server has no file descriptors left", Server(Which::Leader, OnServer::NoFiles, (40, 100)), U of &[Redis, RedisReplica, Etcd1, Zookeeper1];
    33 "the server refuses to write", While(Switch::ReadOnly, (40, 100)), U of &[Redis, Postgres, Pgbouncer];
    34 "the rights of the clients are taken away", While(Switch::Deny, (40, 100)), U of ANY_REDIS;
    35 "all scripts are forgotten", Once(Verb::FlushScripts), K of ANY_REDIS;
    36 "transactions are serializable", While(Switch::Serializable, (60, 120)), K of &[Postgres, Pgbouncer];
}

/// The rows of the matrix that are not here, and why.
pub(crate) const LEFT_OUT: &[(&str, &str)] = &[
    ("6", "a machine cannot be suspended from inside; the suite's cases do it on virtual time"),
    (
        "7",
        "not struck but chosen: contenders drop futures in one turn of ten, and the report counts them",
    ),
    ("13", "one byte a second is a black hole (row 10) until a frame is whole"),
    (
        "19",
        "a kill loses nothing that was written: row 20 loses more, and the tests of SQLite forget what was not synced",
    ),
    (
        "22, PostgreSQL",
        "there is no standby here: row 22 is struck at Redis, and the tests of the store promote standbys",
    ),
    ("24, ZooKeeper", "the links between its servers cannot be cut: row 23 freezes them"),
    ("27, all but etcd", "an old copy is a part of row 20: what was acknowledged since is lost"),
    (
        "30",
        "within the rates that the guarantees allow nothing may happen, and outside row 28 is worse",
    ),
    ("31", "the tests of the stores do it at PostgreSQL, MariaDB, Redis and etcd"),
    (
        "32, SQL",
        "the limits of a server that runs as another user cannot be changed without CAP_SYS_RESOURCE",
    ),
    ("37", "not a fault but a set-up: pgbouncer"),
    ("38", "refused when a client connects: the tests of the stores show it"),
    ("39", "needs a fresh store for each number: the tests of the stores show it"),
    ("40", "not a fault: the locks of every phase have such names"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_matrix_is_struck_or_left_out_with_a_reason() {
        for number in 1..=40_u8 {
            let struck = ROWS.iter().any(|row| row.number == number);
            let text = number.to_string();
            let left_out = LEFT_OUT.iter().any(|(rows, _)| rows.split(',').next() == Some(&*text));
            assert!(struck || left_out, "row {number} is neither struck nor left out");
        }
        for row in ROWS {
            let kinds: Vec<_> = row.expected.iter().flat_map(|(_, kinds)| *kinds).collect();
            let mut distinct = kinds.clone();
            distinct.sort();
            distinct.dedup();
            assert_eq!(distinct.len(), kinds.len(), "{row:?} expects two things of one set-up");
        }
    }
}
