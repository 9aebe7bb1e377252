//! One run: which task, runtime, message or fault comes next.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use tokio::runtime::{Handle, Id};

use crate::choices::{Choices, Decisions, Scenario};
use crate::crowd::{self, CROWD};
use crate::observer::{Counts, Observer};
use crate::process::Driven;
use crate::process::Process;
use crate::property::Variant;
use crate::property::{Property, Violation};
use crate::sharer;
use crate::store::Kind;
use crate::store::network::{LONGEST_TTL, Network};
use crate::user::User;
use crate::world::{Time, World, nanos};

/// A run that takes more steps than this does not end.
const MOST_STEPS: usize = 200_000;
/// The same for a crowd.
const MOST_STEPS_OF_A_CROWD: usize = 5_000_000;
/// How long after the last fault everything works as if there had been none: the longest pause
/// between two looks at a store that pushes, and the latest request.
const RECOVERY: Duration = Duration::from_secs(13 + LONGEST_TTL.as_secs());
/// How long what is released without faults may take.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// What a run has shown.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first broken promise.
    pub violation: Option<Violation>,
    /// The decisions, to replay the run.
    pub decisions: Decisions,
    /// What has happened.
    pub counts: Counts,
    /// How many steps the run had.
    pub steps: usize,
}

/// Simulates one run, with a wrong variant or none.
pub fn simulate(choices: Choices, variant: Option<Variant>) -> Outcome {
    run(&World::new(choices, variant, false))
}

/// The same, told step by step.
pub fn narrate(choices: Choices, variant: Option<Variant>) -> Vec<String> {
    let world = World::new(choices, variant, true);
    let outcome = run(&world);
    let end = outcome.violation.map(|violation| violation.to_string());
    world.story().into_iter().chain(end).collect()
}

fn run(world: &World) -> Outcome {
    let (mut steps, mut counts) = (0, Counts::default());
    match Run::new(world) {
        Ok(mut run) => {
            run.finish();
            (steps, counts) = (run.steps, run.network.observer().counts());
        }
        Err(error) => world.violated(Violation::new(Property::Progress, error.to_string())),
    }
    Outcome { violation: world.violation(), decisions: world.taken(), counts, steps }
}

struct Run {
    // In the order in which they are dropped: tasks before their runtimes.
    tasks: Vec<Task>,
    processes: Vec<Process>,
    runtimes: Vec<Driven>,
    /// The process of each runtime.
    process_of: Vec<usize>,
    network: Network,
    world: World,
    heals_at: Time,
    calm_at: Time,
    steps: usize,
    activity: u64,
}

/// A task of a user.
struct Task {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    ready: Arc<Ready>,
    runtime: usize,
}

struct Ready {
    is_set: AtomicBool,
    world: World,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Relaxed);
        self.world.stir();
    }
}

/// What can come next.
#[derive(Clone, Copy)]
enum Next {
    Due,
    Task(usize),
    Runtime(usize),
}

impl Run {
    fn new(world: &World) -> Result<Self> {
        let kind = [Kind::Pushing, Kind::Polled, Kind::Hinting, Kind::Leased][world.below(4)];
        let (processes, users, names) = Self::size(world);
        // A `Locks` has one runtime, or each of its callers has its own.
        let is_shared = world.has(Scenario::CROWD) || !world.one_in(2);
        let process_of: Vec<_> = if is_shared {
            (0..processes).collect()
        } else {
            (0..users).map(|user| user % processes).collect()
        };
        let runtimes: std::io::Result<Vec<_>> = process_of.iter().map(|_| Driven::new()).collect();
        let runtimes = runtimes.map_err(|error| {
            Error::new(ErrorKind::Internal, "no runtime could be made").with_source(error)
        })?;
        let network = Network::new(world, &Observer::new(world), kind, processes);
        let processes: Result<Vec<_>> = (0..processes)
            .map(|index| {
                let runtime = is_shared.then(|| runtimes[index].handle()).flatten();
                Process::new(&network, index, runtime)
            })
            .collect();
        let processes = processes?;
        let is_crowd = world.has(Scenario::CROWD);
        let (least, more) = if is_crowd { (1, 2) } else { (4, 12) };
        let faults = Duration::from_secs(least) + world.duration(Duration::from_secs(more));
        let heals_at = nanos(faults);
        let calm_at = heals_at + nanos(RECOVERY);
        let cohort = if world.has(Scenario::COHORTS) { [8, 2, 3][world.below(3)] } else { 1 };
        let permits = if world.has(Scenario::KINDS) { [2, 3, 4][world.below(3)] } else { 1 };
        let tasks = (0..users).map(|user| {
            let process = user % processes.len();
            let user_of = User {
                network: network.clone(),
                process: processes[process].clone(),
                other: processes[(process + 1) % processes.len()].clone(),
                names,
                permits,
                cohort,
                calm_at,
            };
            let future: Pin<Box<dyn Future<Output = ()>>> = if is_crowd {
                Box::pin(user_of.run_in_crowd(heals_at))
            } else {
                Box::pin(user_of.run())
            };
            Task {
                future: Some(future),
                ready: Arc::new(Ready { is_set: AtomicBool::new(true), world: world.clone() }),
                runtime: if is_shared { process } else { user },
            }
        });
        Ok(Self {
            tasks: tasks.collect(),
            processes,
            runtimes,
            process_of,
            network,
            world: world.clone(),
            heals_at,
            calm_at,
            steps: 0,
            activity: 0,
        })
    }

    /// How many processes, users and names.
    fn size(world: &World) -> (usize, usize, usize) {
        if world.has(Scenario::CROWD) {
            ([1, 1, 2, 3][world.below(4)], CROWD, 1)
        } else if world.has(Scenario::KINDS) {
            (2 + world.below(2), 3 + world.below(4), 1)
        } else if world.has(Scenario::COHORTS) {
            (1 + world.below(2), 4 + world.below(3), 1)
        } else {
            (1 + world.below(3), 2 + world.below(3), 1 + world.below(2))
        }
    }

    fn finish(&mut self) {
        let is_crowd = self.world.has(Scenario::CROWD);
        let most_steps = if is_crowd { MOST_STEPS_OF_A_CROWD } else { MOST_STEPS };
        let mut ends_at = None;
        while self.world.violation().is_none() {
            self.steps += 1;
            if self.steps > most_steps {
                self.violated(Property::Progress, "the run does not end");
            }
            if ends_at.is_none() && self.tasks.iter().all(|task| task.future.is_none()) {
                ends_at = Some(self.world.now() + nanos(CLEAN_UP));
            }
            if let Some(next) = self.choose() {
                self.take(next);
            } else if ends_at.is_some_and(|at| self.world.now() >= at) {
                return self.look_for_leftovers();
            } else {
                self.pass_time(ends_at);
            }
        }
    }

    fn violated(&self, property: Property, what: impl Into<String>) {
        self.world.violated(Violation::new(property, what));
    }

    /// One of the things that can come next at this time.
    fn choose(&mut self) -> Option<Next> {
        let activity = self.world.activity();
        if activity != self.activity {
            self.activity = activity;
            self.runtimes.iter_mut().for_each(|runtime| runtime.is_stirred = true);
        }
        let now = self.world.now();
        let mut next = Vec::with_capacity(8);
        if self.world.next_due().is_some_and(|at| at <= now) {
            next.push(Next::Due);
        }
        for (at, task) in self.tasks.iter().enumerate() {
            let is_ready = task.future.is_some() && task.ready.is_set.load(Relaxed);
            if is_ready && self.runs(task.runtime) {
                next.push(Next::Task(at));
            }
        }
        for (at, runtime) in self.runtimes.iter().enumerate() {
            let stands = !self.world.is_healed() && now < runtime.stands_until;
            if runtime.is_stirred && !runtime.has_ended() && !stands && self.runs(at) {
                next.push(Next::Runtime(at));
            }
        }
        (!next.is_empty()).then(|| next[self.world.below(next.len())])
    }

    fn runs(&self, runtime: usize) -> bool {
        self.processes[self.process_of[runtime]].runs(&self.world)
    }

    fn take(&mut self, next: Next) {
        match next {
            Next::Due => self.world.step(),
            Next::Task(at) => self.poll(at),
            Next::Runtime(at) => {
                self.world.set_task(None);
                self.runtimes[at].is_stirred = false;
                self.runtimes[at].drive();
                let activity = self.world.activity();
                if activity != self.activity {
                    self.activity = activity;
                    let others = self.runtimes.iter_mut().enumerate();
                    others.filter(|(other, _)| *other != at).for_each(|(_, other)| {
                        other.is_stirred = true;
                    });
                }
            }
        }
    }

    fn poll(&mut self, at: usize) {
        let task = &mut self.tasks[at];
        self.world.set_task(Some(at));
        task.ready.is_set.store(false, Relaxed);
        // On a runtime that has ended a keeper cannot be spawned: its task is gone at once.
        let handle = self.runtimes[task.runtime].handle();
        let _inside = handle.as_ref().map(Handle::enter);
        let waker = Waker::from(Arc::clone(&task.ready));
        if let Some(future) = &mut task.future
            && let Poll::Ready(()) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            task.future = None;
        }
        self.world.stir();
    }

    /// Nothing can happen now, so time passes until something can.
    fn pass_time(&mut self, ends_at: Option<Time>) {
        let now = self.world.now();
        let resumes = self.runtimes.iter().map(|runtime| runtime.stands_until);
        let resumes = resumes.chain(self.processes.iter().map(Process::suspended_until));
        let others = [self.world.next_due(), self.network.next_end(), ends_at, Some(self.heals_at)];
        let later = resumes.chain(others.into_iter().flatten()).filter(|at| *at > now).min();
        let Some(next) = later else {
            return self.violated(Property::Progress, "nothing is left to wait for");
        };
        self.world.advance(next);
        if next >= self.heals_at && !self.world.is_healed() {
            self.world.heal();
        }
        self.network.settle();
        if next >= self.calm_at {
            self.network.observer().look_for_starvation();
            self.look_for_late_turns();
        }
        if self.world.fault(20) {
            self.disturb();
        }
    }

    fn disturb(&mut self) {
        let world = &self.world;
        let until = world.now() + nanos(world.duration(2 * LONGEST_TTL));
        let process = world.below(self.processes.len());
        let runtime = world.below(self.runtimes.len());
        let what = world.below(8);
        world.tell(|| {
            let seconds = until as f64 / 1e9;
            format!("disturbed: {what}, process {process}, runtime {runtime}, until {seconds:.3} s")
        });
        match what {
            0 | 1 => self.network.cut(process, until),
            2 | 3 => self.processes[process].suspend(until),
            4 | 5 => self.runtimes[runtime].stands_until = until,
            6 if world.loses_processes() => {
                self.processes[self.process_of[runtime]].loses_a_runtime();
                self.runtimes[runtime].end();
            }
            _ => self.network.take_away_any(),
        }
        self.world.stir();
    }

    /// Everybody in a crowd, and of those who share, has had a turn after so long a time.
    fn look_for_late_turns(&self) {
        let limit = if self.world.has(Scenario::CROWD) {
            crowd::ALL_TURNS
        } else if self.world.has(Scenario::KINDS) {
            sharer::ALL_TURNS
        } else {
            return;
        };
        let late = self.world.now() - self.calm_at > nanos(limit);
        let waiting = self.tasks.iter().filter(|task| task.future.is_some()).count();
        if late && waiting > 0 {
            self.violated(Property::NoStarvation, format!("{waiting} have had no turn"));
        }
    }

    /// Everything was given up, so nothing is in the store but what belonged to something that ended.
    fn look_for_leftovers(&self) {
        let ended = |id: Option<Id>| {
            let mut runtimes = self.runtimes.iter().zip(&self.process_of);
            runtimes.any(|(runtime, process)| {
                Some(runtime.id) == id
                    && (runtime.has_ended() || self.processes[*process].is_closed())
            })
        };
        let observer = self.network.observer();
        // A hold that is passed on goes to any runtime of its process.
        let may_have_ended = |(process, runtime): (usize, Option<Id>)| {
            let passes_on = self.world.has(Scenario::COHORTS);
            ended(runtime) || passes_on && self.processes[process].has_lost_a_runtime()
        };
        for owner in self.network.owners() {
            if !observer.places_of(owner).into_iter().any(may_have_ended) {
                self.violated(Property::NoLeftovers, format!("{owner:?} is still in the store"));
            }
        }
    }
}
