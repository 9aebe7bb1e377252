//! What an operator does when fewer nodes are admitted than a seed needs.

use lock_core::{Error, ErrorKind, Result};

use super::admission::Admission;
use super::plan::{Marker, Report, Step, plan, seed_of_recovery};

impl Admission {
    /// See [`RedlockBackend::recover`](crate::RedlockBackend::recover).
    pub(crate) async fn recover(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        for _ in 0..4 {
            let reports = self.reports().await?;
            let terms = self.terms()?;
            plan(&reports, &terms)?;
            let known: Vec<_> = reports.iter().flatten().collect();
            if known.len() < self.quorum.needed() {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{} of {} nodes answer: a recovery needs a quorum",
                        known.len(),
                        reports.len()
                    ),
                ));
            }
            let out = |report: &&&Report| report.marker() != Marker::Admitted;
            if !known.iter().any(|report| out(&report)) {
                return Ok(());
            }
            let nodes_in = |wanted: fn(Marker) -> bool| {
                let reports = reports.iter().enumerate();
                reports
                    .filter(move |(_, report)| report.as_ref().is_some_and(|r| wanted(r.marker())))
                    .map(|(node, _)| node)
            };
            let boot = terms.boot.clone();
            let begin: Vec<_> =
                nodes_in(|marker| !matches!(marker, Marker::Admitted | Marker::Quarantine))
                    .map(|node| Step::Begin { node, state: "quarantine", boot: boot.clone() })
                    .collect();
            if !begin.is_empty() {
                self.carry_out_all(&begin, &reports).await?;
                continue;
            }
            let youngest = known.iter().filter(out).map(|report| report.age()).min();
            let left = terms.wait.saturating_sub(youngest.unwrap_or_default());
            if !left.is_zero() {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "the recovery has begun: repeat it in {left:.1?}, when every older lock has ended"
                    ),
                ));
            }
            let seed = seed_of_recovery(&reports);
            let admit: Vec<_> = nodes_in(|marker| marker == Marker::Quarantine)
                .map(|node| Step::Admit { node, seed, min_age: terms.wait, boot: boot.clone() })
                .collect();
            self.carry_out_all(&admit, &reports).await?;
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "the nodes kept changing during the recovery: repeat it when they are at rest",
        ))
    }

    async fn carry_out_all(&self, steps: &[Step], reports: &[Option<Report>]) -> Result<()> {
        match self.carry_out(steps, reports).await {
            Some(failed) => Err(Error::new(ErrorKind::Unavailable, failed)),
            None => Ok(()),
        }
    }
}
