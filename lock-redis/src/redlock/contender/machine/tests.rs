use std::time::Duration;

use super::super::rules::Rules;
use super::*;

const fn ms(ms: u64) -> Time {
    Duration::from_millis(ms)
}

fn terms() -> Terms {
    Terms {
        rules: Rules::REAL,
        fences: 1,
        valid: ms(10_000),
        margin: ms(102),
        lasts: ms(12_000),
        slow_after: ms(500),
        short_wait: ms(1),
        listing: ms(10),
        join_after: ms(250),
        pauses: (ms(50), ms(1000)),
    }
}

/// Three nodes, and what is under way to them by a try.
struct Table {
    contender: Contender,
    now: Time,
    sent: Vec<Sent>,
}

impl Table {
    fn trying() -> Self {
        let mut contender = Contender::new(3, None);
        let sent = contender.begin_try(&terms(), (Time::ZERO, Time::ZERO), 7);
        Self { contender, now: Time::ZERO, sent }
    }

    fn begin(&mut self, begin: impl FnOnce(&mut Contender, &Terms, Time) -> Vec<Sent>) {
        self.sent.extend(begin(&mut self.contender, &terms(), self.now));
    }

    /// The oldest request to the node is answered.
    fn reply(&mut self, node: usize, reply: Reply) {
        let place = self.sent.iter().position(|sent| sent.0 == node).expect("a request");
        let sent = self.sent.remove(place);
        self.begin(|contender, terms, now| contender.replied(terms, now, sent, reply));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.begin(Contender::time);
    }
}

fn mine(counter: u64) -> Reply {
    Reply::Mine { counter }
}

#[test]
fn differing_answers_are_raised_after_a_moment() {
    let mut table = Table::trying();
    table.reply(0, mine(7));
    table.reply(1, mine(9));
    assert_eq!(table.sent.len(), 1, "the third node may decide");
    table.pass(ms(1));
    assert_eq!(table.sent[1], (0, Request::Raise { attempt: 1, value: 9 }));
    table.reply(2, mine(7));
    assert_eq!(table.sent[1], (2, Request::Raise { attempt: 1, value: 9 }));
    table.reply(0, mine(9));
    let outcome = table.contender.outcome();
    assert!(matches!(outcome, Some(Outcome::Granted { fence: 9, .. })), "{outcome:?}");
}

#[test]
fn nothing_is_acquired_behind_a_release() {
    let mut table = Table::trying();
    table.reply(0, Reply::NotMine);
    table.reply(1, mine(7));
    table.reply(2, mine(7));
    table.begin(|contender, terms, now| contender.begin_release(terms, now, false));
    table.sent.clear();
    table.pass(ms(300));
    assert_eq!(table.sent, [], "the first node is not asked to join any more");
    table.begin(|contender, terms, now| contender.begin_try(terms, (now, now), 8));
    assert_eq!((table.sent, table.contender.outcome()), (Vec::new(), Some(Outcome::Closed)));
}

#[test]
fn an_answer_to_an_earlier_renewal_does_not_count() {
    let mut table = Table::trying();
    (0..3).for_each(|node| table.reply(node, mine(7)));
    table.begin(|contender, terms, now| contender.begin_survey(terms, now, true));
    table.contender.abandon();
    let late = std::mem::take(&mut table.sent);
    table.begin(|contender, terms, now| contender.begin_survey(terms, now, true));
    for sent in late {
        table.contender.replied(&terms(), table.now, sent, mine(7));
    }
    assert_eq!(table.contender.ballot.pending(), 3);
}
