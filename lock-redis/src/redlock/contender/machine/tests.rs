use std::time::Duration;

use super::super::rules::Rules;
use super::*;

const fn ms(ms: u64) -> Time {
    Duration::from_millis(ms)
}

fn terms() -> Terms {
    Terms {
        rules: Rules::REAL,
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

/// Three nodes, and what is under way to them.
struct Table {
    contender: Contender,
    terms: Terms,
    now: Time,
    sent: Vec<Sent>,
}

impl Table {
    fn new(begin: impl FnOnce(&mut Contender, &Terms) -> Vec<Sent>) -> Self {
        let (mut contender, terms) = (Contender::new(3, None), terms());
        let sent = begin(&mut contender, &terms);
        Self { contender, terms, now: Time::ZERO, sent }
    }

    /// A try is under way.
    fn trying() -> Self {
        Self::new(|contender, terms| contender.begin_try(terms, (Time::ZERO, Time::ZERO), 7))
    }

    fn begin(&mut self, begin: impl FnOnce(&mut Contender, &Terms, Time) -> Vec<Sent>) {
        self.sent.extend(begin(&mut self.contender, &self.terms, self.now));
    }

    /// The oldest request to the node is answered.
    fn reply(&mut self, node: usize, reply: Reply) {
        let place = self.sent.iter().position(|sent| sent.0 == node).expect("a request");
        let sent = self.sent.remove(place);
        self.sent.extend(self.contender.replied(&self.terms, self.now, sent, reply));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.sent.extend(self.contender.time(&self.terms, self.now));
    }

    fn take(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }
}

fn mine(counter: u64) -> Reply {
    Reply::Mine { counter }
}

fn is_granted(outcome: Option<Outcome>, wanted: u64) -> bool {
    matches!(outcome, Some(Outcome::Granted { fence, .. }) if fence == wanted)
}

fn releases(sent: &[Sent]) -> Vec<usize> {
    let release =
        |(node, request): &Sent| matches!(request, Request::Release { .. }).then_some(*node);
    sent.iter().filter_map(release).collect()
}

#[test]
fn a_node_that_did_not_grant_is_asked_once_more() {
    let mut table = Table::trying();
    table.reply(0, Reply::NotMine);
    table.reply(1, mine(7));
    table.reply(2, mine(7));
    assert!(is_granted(table.contender.outcome(), 7));
    assert_eq!(table.contender.wake_at(&table.terms, table.now), Some(ms(250)));
    table.contender.abandon();
    table.pass(ms(250));
    let request = Request::Acquire { attempt: 1, proposal: 7, joins: true };
    assert_eq!(table.sent, [(0, request)]);
    table.reply(0, Reply::NotMine);
    assert_eq!(table.contender.wake_at(&table.terms, table.now), None, "until the next renewal");
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
    assert!(is_granted(table.contender.outcome(), 9));
}

#[test]
fn a_failed_try_gives_back_what_it_has_and_what_it_may_get() {
    let mut table = Table::trying();
    table.reply(0, mine(7));
    table.reply(1, Reply::NotMine);
    table.reply(2, Reply::Unknown);
    assert_eq!(releases(&table.sent), [0, 2]);
    assert_eq!(table.contender.outcome(), None, "its own vote is waited for");
    table.reply(0, Reply::Freed(true));
    assert_eq!(table.contender.outcome(), Some(Outcome::Busy));
    table.contender.abandon();
    // The request to the third node may come behind the release.
    table.reply(2, Reply::Freed(false));
    table.pass(ms(50));
    assert_eq!(releases(&table.sent), [2]);
    table.reply(2, Reply::Freed(true));
    assert_eq!(table.contender.wake_at(&table.terms, table.now), None);
}

#[test]
fn a_grant_that_is_over_is_given_back() {
    let mut table = Table::trying();
    table.pass(ms(9_950));
    table.reply(0, mine(7));
    table.reply(1, mine(7));
    assert_eq!(releases(&table.sent), [0, 1, 2]);
    table.pass(ms(500));
    assert_eq!(table.contender.outcome(), Some(Outcome::TooLate));
}

#[test]
fn nothing_is_acquired_behind_a_release() {
    let mut table = Table::trying();
    table.reply(0, Reply::NotMine);
    table.reply(1, mine(7));
    table.reply(2, mine(7));
    table.begin(|contender, terms, now| contender.begin_release(terms, now, false));
    assert_eq!(releases(&table.take()), [0, 1, 2]);
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
    let late = table.take();
    table.begin(|contender, terms, now| contender.begin_survey(terms, now, true));
    for sent in late {
        table.contender.replied(&table.terms, table.now, sent, mine(7));
    }
    assert_eq!(table.contender.ballot.pending(), 3);
}

#[test]
fn a_renewal_adopts_who_joined_and_asks_who_did_not() {
    let mut table = Table::trying();
    (0..3).for_each(|node| table.reply(node, mine(7)));
    table.begin(|contender, terms, now| contender.begin_survey(terms, now, true));
    let replies = [mine(7), mine(7), Reply::Unproven { counter: 5 }];
    replies.into_iter().enumerate().for_each(|(node, reply)| table.reply(node, reply));
    assert_eq!(table.contender.outcome(), Some(Outcome::Held));
    let adopt = Request::Renew { call: 2, fence: Some(7), adopt: Some(5), prolongs: true };
    assert_eq!(table.sent, [(2, adopt)]);
    table.reply(2, Reply::NotMine);
    table.pass(ms(250));
    assert!(matches!(table.sent[..], [(2, Request::Acquire { joins: true, .. })]));
}

#[test]
fn the_hold_of_a_token_is_released_by_its_fence_until_a_node_has_confirmed_it() {
    let mut contender = Contender::new(3, Some(7));
    let terms = terms();
    let fence_of = |sent: &[Sent]| match sent[0].1 {
        Request::Release { fence, .. } => fence,
        request => panic!("{request:?}"),
    };
    let mut other = contender.clone();
    assert_eq!(fence_of(&other.begin_release(&terms, ms(0), false)), Some(7));
    for sent in contender.begin_survey(&terms, ms(0), false) {
        contender.replied(&terms, ms(0), sent, mine(7));
    }
    assert_eq!(contender.outcome(), Some(Outcome::Held));
    assert_eq!(fence_of(&contender.begin_release(&terms, ms(0), false)), None);
}
