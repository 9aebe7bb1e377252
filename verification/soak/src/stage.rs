//! Where a phase takes place: the registers, the ledger, and the way back to the workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conformance_tests::shared::{Compares, Register};
use distlock::FencingToken;
use distlock::clock::{Clock, SystemClock};
use serde::Serialize;

use crate::ledger::Ledger;
use crate::parts::Parts;
use crate::protocol::{Answer, EMPTY, Order, Reads, Say};
use crate::pulse::Pulse;

/// The registers of one lock: one that checks the fence, and the two controls.
pub(crate) const REGISTERS: [Compares; 3] = [Compares::Always, Compares::OnWrite, Compares::Never];

/// A promise that was not kept.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Violated {
    /// As the README numbers them.
    pub(crate) promise: &'static str,
    pub(crate) what: String,
}

impl Violated {
    pub(crate) fn new(promise: &'static str, what: String) -> Self {
        Self { promise, what }
    }

    /// Whether a busy machine is no excuse.
    pub(crate) fn is_grave(&self) -> bool {
        matches!(self.promise, "S1" | "S2" | "S3" | "S7" | PANIC)
    }
}

/// What no process may end by. The README has no number for it.
const PANIC: &str = "no panic";

#[derive(Debug)]
pub(crate) struct Stage {
    /// Those of the plain locks, and of the parts of others.
    pub(crate) names: Vec<String>,
    pub(crate) parts: Parts,
    clock: SystemClock,
    pulse: Arc<Pulse>,
    ledger: Mutex<Ledger>,
    /// By name.
    registers: Mutex<Vec<[Register; 3]>>,
    complaints: Mutex<Vec<Violated>>,
    /// Why a worker could not go on last: expected while the store is away.
    failure: Mutex<String>,
}

impl Stage {
    pub(crate) fn new(mut names: Vec<String>, parts: Parts, ledger: Ledger) -> Self {
        names.extend(parts.names());
        let registers = names.iter().map(|_| REGISTERS.map(Register::new)).collect();
        let clock = SystemClock::default();
        Self {
            names,
            parts,
            pulse: Pulse::start(clock.clone()),
            clock,
            ledger: Mutex::new(ledger),
            registers: Mutex::new(registers),
            complaints: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    pub(crate) fn clock(&self) -> &SystemClock {
        &self.clock
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// For how long the soak itself has stood still since a moment: its servers and workers share the
    /// processors with it.
    pub(crate) fn stalled_since(&self, moment: u64) -> Duration {
        Duration::from_nanos(self.pulse.stalled_since(moment, self.now()))
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something that must not happen, whatever the faults.
    pub(crate) fn complain(&self, promise: &'static str, what: String) {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        complaints.push(Violated::new(promise, what));
    }

    /// A worker has panicked, or crashed.
    pub(crate) fn panicked(&self, worker: usize, what: &str) {
        self.complain(PANIC, format!("worker {worker}: {what}"));
    }

    pub(crate) fn last_failure(&self) -> String {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes down what a worker says; what it is to be answered.
    pub(crate) fn hear(&self, worker: usize, said: Say) -> Option<Order> {
        self.ledger().note(worker, &said);
        let (request, answer) = match said {
            Say::Read { request, name, fence } => (request, self.read(name, fence)),
            Say::Write { request, name, fence, read, added } => {
                (request, self.write(name, fence, read, added))
            }
            Say::Closed(Err(error)) => {
                self.complain("L4", format!("worker {worker} was not closed in time: {error}"));
                return None;
            }
            Say::Waiting(contenders) => {
                self.complain(
                    "L1",
                    format!("{contenders} contenders of worker {worker} wait for ever"),
                );
                return None;
            }
            Say::Panicked(what) => {
                self.panicked(worker, &what);
                return None;
            }
            Say::Failed(error) => {
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = error;
                return None;
            }
            _ => return None,
        };
        Some(Order::Answer { request, answer })
    }

    fn read(&self, name: usize, fence: u64) -> Answer {
        let mut registers = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = [None; 3];
        if let Ok(fence) = FencingToken::new(fence) {
            for (register, read) in registers[name].iter_mut().zip(&mut read) {
                *read = register.read(fence).map(|last| last.unwrap_or(EMPTY));
            }
        }
        Answer::Read(read)
    }

    fn write(&self, name: usize, fence: u64, read: Reads, added: u64) -> Answer {
        let mut registers = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(fence) = FencingToken::new(fence) {
            for (register, read) in registers[name].iter_mut().zip(read) {
                if let Some(read) = read {
                    register.write(fence, (read != EMPTY).then_some(read), added);
                }
            }
        }
        Answer::Written
    }

    /// Ends the phase: the ledger, the registers by name, and the complaints.
    pub(crate) fn close(self) -> (Ledger, Vec<[Register; 3]>, Vec<Violated>) {
        let inner = PoisonError::into_inner;
        (
            self.ledger.into_inner().unwrap_or_else(inner),
            self.registers.into_inner().unwrap_or_else(PoisonError::into_inner),
            self.complaints.into_inner().unwrap_or_else(PoisonError::into_inner),
        )
    }
}
