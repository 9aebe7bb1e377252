//! How faults are struck, and taken back.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::server::{Cut, Proxy};
use conformance_tests::{Fault, Faults, Unavailable};
use distlock::admin::HolderInfo;
use distlock::clock::Clock;
use distlock::{Effect, Locks, Released};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde::Serialize;

use super::act::{Act, Class, OnLink, OnServer, OnWorker, Which};
use super::schedule::Planned;
use crate::crew::{Crew, Do};
use crate::protocol::Order;
use crate::site::{Data, Site, Switch, Verb, WallClock};
use crate::stage::Stage;

/// The file descriptors that a starved server may have: none of these is free.
const FEW_FILES: u64 = 4;
/// How often a lock is taken away whose fate is not known, before that is given up.
const FORCED: usize = 4;
/// A day in seconds.
const DAY: i64 = 86_400;

/// A fault that has struck.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Strike {
    pub(crate) number: u8,
    pub(crate) name: &'static str,
    pub(crate) class: Class,
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    /// From when to when that was done which may break exclusion, if anything was: a part of the strike.
    pub(crate) acted: Option<(u64, u64)>,
    /// The only lock that it can have broken; none if it is not aimed at one.
    pub(crate) lock: Option<String>,
    /// Why it could not be struck as meant: then it does not count.
    pub(crate) failed: Option<String>,
}

impl Strike {
    /// Of no row: a lock is taken from its holder, to heal the store.
    fn of_operator(lock: &str, begun: u64, ended: u64) -> Self {
        Self {
            number: 0,
            name: "an operator ends a lease that seems to last for an hour",
            class: Class::F,
            begun,
            ended,
            acted: Some((begun, ended)),
            lock: Some(lock.to_owned()),
            failed: None,
        }
    }

    /// Whether it can have met a lock of this name.
    pub(crate) fn is_aimed_at(&self, name: &str) -> bool {
        self.lock.as_deref().is_none_or(|lock| lock == name)
    }
}

/// What is known of a strike only when it has begun.
#[derive(Debug, Default)]
struct Met {
    acted: Option<(u64, u64)>,
    lock: Option<String>,
}

/// Strikes the faults of a phase.
#[derive(Debug)]
pub(crate) struct Injector<'a> {
    pub(crate) site: &'a dyn Site,
    pub(crate) crew: &'a Crew,
    pub(crate) stage: &'a Arc<Stage>,
    pub(crate) ttl: Duration,
    /// A client of the operator, without links that are disturbed.
    pub(crate) operator: &'a Locks,
    /// The wall clocks of workers whose clock is off.
    pub(crate) skewed: [WallClock; 2],
}

impl Injector<'_> {
    pub(crate) async fn strike(&self, planned: &Planned) -> Strike {
        tokio::time::sleep(planned.gap).await;
        let begun = self.stage.now();
        let mut met = Met::default();
        let failed = self.act(planned, &mut met).await.err();
        Strike {
            number: planned.row.number,
            name: planned.row.name,
            class: planned.class,
            begun,
            ended: self.stage.now(),
            acted: met.acted,
            lock: met.lock,
            failed: failed.map(|error| error.to_string()),
        }
    }

    async fn act(&self, planned: &Planned, met: &mut Met) -> Result<(), Unavailable> {
        let Planned { pick, lasts, .. } = *planned;
        let Met { acted, lock } = met;
        match planned.row.act {
            Act::Worker(how, _) => self.on_worker(how, pick, lasts).await,
            Act::Link(how, _) => self.on_link(how, pick, lasts).await,
            Act::Server(which, how, _) => {
                self.under_a_holder(planned, self.on_server(which, how, pick, lasts), acted).await
            }
            Act::Once(verb) => {
                let verb = match verb {
                    Verb::LoseOne(_) => Verb::LoseOne(pick),
                    Verb::MoveLeader(_) => Verb::MoveLeader(pick),
                    verb => verb,
                };
                self.under_a_holder(planned, self.site.operate(verb), acted).await
            }
            Act::While(switch, _) => self.switch(switch, planned, acted).await,
            Act::CutOff(_) => {
                let members = self.site.pids().len();
                self.switch(Switch::CutOff(below(pick, members)), planned, acted).await
            }
            Act::Force => self.under_a_holder(planned, self.force(pick, lock), acted).await,
            Act::Clock(ahead, _) => self.on_clock(ahead, planned, acted).await,
        }
    }

    /// Does something that may break exclusion while a holder is stopped in the middle of its hold:
    /// it hears of nothing, and goes on with what it has read when the next holder has read, too.
    async fn under_a_holder(
        &self,
        planned: &Planned,
        act: impl Future<Output = Result<(), Unavailable>>,
        acted: &mut Option<(u64, u64)>,
    ) -> Result<(), Unavailable> {
        if planned.class < Class::F {
            return act.await;
        }
        let at = below(planned.pick, self.crew.workers.len());
        self.stop(at).await;
        let (held, since) = (self.stage.ledger().name_held_by(at), self.stage.clock().now());
        let done = act.await;
        *acted = Some((since.as_nanos(), self.stage.now()));
        tokio::time::sleep(self.ttl.mul_f64(0.4)).await;
        // A busy machine grants it later, but not for longer than the one that is stopped may believe in it.
        let is_waited_for =
            |name| self.stage.ledger().stuck_since(since.as_nanos()).contains(&name);
        while self.stage.clock().now() < since + self.ttl.mul_f64(0.8)
            && held.is_some_and(is_waited_for)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.crew.workers[at].tell(Do::Continue);
        done
    }

    /// Takes back what may be left of any fault, as an operator would. What that may break itself.
    pub(crate) async fn heal(&self, clock_was_set: bool) -> Result<Vec<Strike>, Unavailable> {
        for worker in &self.crew.workers {
            worker.tell(Do::Continue);
            worker.links.iter().for_each(Proxy::pass);
        }
        // A server that was not up again in time was killed.
        let pids = self.site.pids();
        let dead: Vec<_> = (0..pids.len()).filter(|at| pids[*at].is_none()).collect();
        if !dead.is_empty() {
            self.site.start(&dead, Data::Kept).await?;
        }
        Ok(if clock_was_set { self.end_long_leases().await } else { Vec::new() })
    }

    /// A lease from the time when the clock was ahead seems to last for an hour. Most holders have gone a ttl later. From
    /// one that has renewed it since, it is taken: a renewal makes no lease shorter.
    async fn end_long_leases(&self) -> Vec<Strike> {
        tokio::time::sleep(self.ttl).await;
        let mut held = Vec::new();
        for name in &self.stage.names {
            held.extend(self.operator.inspect(name).await.ok().flatten());
        }
        for whole in self.stage.parts.wholes() {
            held.extend(self.operator.list(whole).await.unwrap_or_default());
        }
        let mut ended = Vec::new();
        for lock in held {
            let long = |holder: &HolderInfo| holder.expires_in.is_some_and(|left| left > self.ttl);
            if let Some(holder) = lock.holder.filter(long) {
                let begun = self.stage.now();
                let _ = self.operator.force_release(lock.key.name(), &holder.mark).await;
                ended.push(Strike::of_operator(lock.key.name(), begun, self.stage.now()));
            }
        }
        ended
    }

    async fn on_worker(
        &self,
        how: OnWorker,
        pick: u64,
        lasts: Duration,
    ) -> Result<(), Unavailable> {
        // A holder, if there is one.
        let holder = self.stage.ledger().some_holder(pick);
        let at = holder.map_or_else(|| below(pick, self.crew.workers.len()), |(worker, _)| worker);
        let worker = &self.crew.workers[at];
        match how {
            OnWorker::Kill => worker.tell(Do::Kill),
            OnWorker::Die => {
                let polls = 1 + below(pick >> 8, 8);
                worker.tell(Do::Tell(Order::Die { polls }));
            }
            OnWorker::Stop => self.stop(at).await,
            OnWorker::Starve => worker.tell(Do::Tell(Order::Starve(lasts))),
            OnWorker::Skew => {
                let ahead = below(pick >> 8, 2);
                self.skewed[ahead].set(if ahead == 1 { DAY } else { -DAY })?;
                worker.tell(Do::Restart(self.skewed[ahead].variables()?));
            }
            OnWorker::Partition => worker.links.iter().for_each(Proxy::stall),
        }
        tokio::time::sleep(lasts).await;
        match how {
            OnWorker::Stop => worker.tell(Do::Continue),
            OnWorker::Partition => worker.links.iter().for_each(Proxy::pass),
            _ => {}
        }
        Ok(())
    }

    /// Stops a worker, if it can be in the middle of a hold.
    async fn stop(&self, at: usize) {
        const PATIENCE: Duration = Duration::from_secs(2);
        let worker = &self.crew.workers[at];
        let before = self.stage.clock().now() + PATIENCE;
        worker.tell(Do::Tell(Order::Halt { before: before.as_nanos() }));
        while self.stage.clock().now() < before + PATIENCE / 10 {
            if self.crew.is_stopped(at) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        worker.tell(Do::Stop);
    }

    /// An error if nothing has met it: a client of several servers may use the link to one of them only.
    async fn on_link(&self, how: OnLink, pick: u64, lasts: Duration) -> Result<(), Unavailable> {
        let links = &self.crew.workers[below(pick, self.crew.workers.len())].links;
        let (used, before) = (self.used(links).await, struck(links));
        // Of several links all, or only one.
        let one = below(pick >> 8, used.len() * 2);
        let used = used.get(one).map_or(&used[..], std::slice::from_ref);
        for link in used {
            disturb(link, how, pick, lasts).await?;
        }
        tokio::time::sleep(lasts).await;
        let waits = matches!(how, OnLink::HoldReply | OnLink::LoseRequest | OnLink::LoseReply);
        let is_met = match waits {
            true => self.comes(|| struck(links) > before).await,
            false => !used.is_empty(),
        };
        links.iter().for_each(Proxy::pass);
        if is_met { Ok(()) } else { Err(Unavailable::broken("nothing has met it")) }
    }

    /// Those that carry requests.
    async fn used<'l>(&self, links: &'l [Proxy]) -> Vec<&'l Proxy> {
        let before: Vec<_> = links.iter().map(Proxy::requests).collect();
        let used = || {
            let used = links.iter().zip(&before).filter(|(link, had)| link.requests() > **had);
            used.map(|(link, _)| link).collect::<Vec<_>>()
        };
        if self.comes(|| !used().is_empty()).await {
            // Others may be next.
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        used()
    }

    /// Whether this is so within a ttl: a worker may have begun only now, and the machine may be busy.
    async fn comes(&self, is_so: impl Fn() -> bool) -> bool {
        let until = self.stage.clock().now() + self.ttl;
        while !is_so() && self.stage.clock().now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        is_so()
    }

    async fn on_server(
        &self,
        which: Which,
        how: OnServer,
        pick: u64,
        lasts: Duration,
    ) -> Result<(), Unavailable> {
        let servers = self.choose(which, pick).await?;
        match how {
            OnServer::Freeze => {
                servers.iter().try_for_each(|server| self.site.freeze(*server))?;
                tokio::time::sleep(lasts).await;
                servers.iter().try_for_each(|server| self.site.thaw(*server))
            }
            OnServer::Crash | OnServer::Empty => {
                servers.iter().try_for_each(|server| self.site.kill(*server))?;
                tokio::time::sleep(lasts).await;
                let data = if how == OnServer::Crash { Data::Kept } else { Data::Lost };
                self.site.start(&servers, data).await
            }
            OnServer::NoFiles => self.starve(&servers, lasts).await,
        }
    }

    /// Leaves servers without free file descriptors for a while.
    async fn starve(&self, servers: &[usize], lasts: Duration) -> Result<(), Unavailable> {
        let pids = self.site.pids();
        let mut before = Vec::new();
        for (at, pid) in servers.iter().filter_map(|at| Some((*at, pids[*at]?))) {
            before.push((at, limit_files(pid, Some(FEW_FILES))?));
        }
        for link in self.crew.workers.iter().flat_map(|worker| &worker.links) {
            link.cut(Cut::Reset);
        }
        tokio::time::sleep(lasts).await;
        let pids = self.site.pids();
        for (at, limit) in before {
            match pids[at] {
                Some(pid) => drop(limit_files(pid, limit)?),
                // etcd ends if it cannot open the next file of its log. A service manager would start it
                // again.
                None => self.site.start(&[at], Data::Kept).await?,
            }
        }
        Ok(())
    }

    async fn choose(&self, which: Which, pick: u64) -> Result<Vec<usize>, Unavailable> {
        let all = self.site.pids().len();
        Ok(match which {
            Which::Leader => vec![self.site.leader().await?],
            Which::Other => {
                let leader = self.site.leader().await?;
                vec![(leader + 1 + below(pick, all.saturating_sub(1).max(1))) % all.max(1)]
            }
            Which::Majority => (0..=all / 2).map(|at| (at + below(pick, all)) % all).collect(),
        })
    }

    async fn switch(
        &self,
        switch: Switch,
        planned: &Planned,
        acted: &mut Option<(u64, u64)>,
    ) -> Result<(), Unavailable> {
        let on = self.site.switch(switch, true).await;
        if on.is_ok() {
            tokio::time::sleep(planned.lasts).await;
        }
        // Also if it is not known whether it was switched on.
        self.under_a_holder(planned, self.site.switch(switch, false), acted).await.and(on)
    }

    /// What breaks exclusion is the step ahead: to the wrong time, or back from it.
    async fn on_clock(
        &self,
        ahead: i64,
        planned: &Planned,
        acted: &mut Option<(u64, u64)>,
    ) -> Result<(), Unavailable> {
        let clock = self.site.wall_clock();
        let clock = clock.ok_or_else(|| Unavailable::broken("no clock to set"))?;
        let (to, back) = (async { clock.set(ahead) }, async { clock.set(0) });
        if ahead > 0 {
            self.under_a_holder(planned, to, acted).await?;
            tokio::time::sleep(planned.lasts).await;
            back.await
        } else {
            to.await?;
            tokio::time::sleep(planned.lasts).await;
            self.under_a_holder(planned, back, acted).await
        }
    }

    async fn force(&self, pick: u64, lock: &mut Option<String>) -> Result<(), Unavailable> {
        // The one that was stopped for this, if it holds a lock.
        let stopped = below(pick, self.crew.workers.len());
        let name = self.stage.ledger().name_held_by(stopped);
        let name = name.unwrap_or_else(|| below(pick, self.stage.parts.plain));
        let name = &*lock.insert(self.stage.names[name].clone());
        for _ in 1..FORCED {
            match self.operator.force_release_any(name).await {
                // Neither done nor not done: an operator looks again.
                Err(error) if error.effect() == Effect::Unknown => {}
                forced => return told(forced),
            }
        }
        told(self.operator.force_release_any(name).await)
    }
}

async fn disturb(link: &Proxy, how: OnLink, pick: u64, lasts: Duration) -> Result<(), Unavailable> {
    match how {
        OnLink::HoldReply => link.inject(Fault::DelayNextReply(lasts)).await?,
        OnLink::LoseRequest => link.inject(Fault::LoseNextRequest).await?,
        OnLink::LoseReply => {
            let skip = u32::try_from(below(pick >> 16, 12)).unwrap_or(0);
            link.inject(Fault::SkipRequests(skip)).await?;
            link.inject(Fault::LoseNextReply).await?;
        }
        OnLink::Reset => link.cut(Cut::Reset),
        OnLink::Fin => link.cut(Cut::Fin),
        OnLink::Silence => link.stall(),
        OnLink::SilencePresent => link.stall_present(),
        OnLink::SilenceReplies => link.stall_replies(),
        OnLink::Refuse => link.inject(Fault::Refuse).await?,
        OnLink::Delay => link.delay(Duration::from_millis(200), Duration::from_millis(200)),
    }
    Ok(())
}

/// How many planned faults have struck on these.
fn struck(links: &[Proxy]) -> u64 {
    links.iter().filter_map(Faults::struck).sum()
}

fn told(forced: distlock::Result<Released>) -> Result<(), Unavailable> {
    forced.map(drop).map_err(|error| Unavailable::broken(format!("not forced: {error}")))
}

/// Something below a limit, from a number that was drawn in advance.
fn below(pick: u64, limit: usize) -> usize {
    usize::try_from(pick).unwrap_or(0) % limit.max(1)
}

/// The limit before.
fn limit_files(pid: u32, limit: Option<u64>) -> Result<Option<u64>, Unavailable> {
    let broken = |error| Unavailable::broken(format!("no limit for process {pid}: {error}"));
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // That of this process, which the servers have inherited: only root may exceed it.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let present = prlimit(pid, Resource::Nofile, Rlimit { current: limit, maximum });
    present.map(|before| before.current).map_err(broken)
}
