//! All of it, step by step.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::beside::{self, Beside};
use crate::job::{self, Ended, Job};
use crate::summary::{self, Row, Summary};
use crate::verdict::{Doubt, Verdict};
use crate::{again, history, lanes, sizes, soak};

/// What a run has seen so far.
struct Run {
    begun: Instant,
    /// Seconds that had gone by before.
    before: u64,
    step: (String, Instant),
    rows: Vec<Row>,
    failures: BTreeSet<String>,
    summary: Summary,
}

/// A program, and how it ended beside others.
struct Ran {
    job: Job,
    ended: Ended,
    verdict: Verdict,
}

/// Builds and runs the tests of a full or of a quick run, with the checks and the soak of a full one. The status.
pub(crate) fn whole(folder: &Path, is_full: bool, before: u64) -> io::Result<i32> {
    let mut run = Run::new(before);
    let targets = job::targets(is_full).join(" ");
    run.step(&format!("cargo test --no-run --workspace --all-features {targets}"));
    let Some(jobs) = job::recorded(folder, is_full)? else {
        eprintln!("FAILED: the tests do not build");
        return Ok(1);
    };
    // The model checks are in a chain beside the tests.
    let jobs = jobs.into_iter().filter(|job| !beside::is_model(&job.name)).collect();
    let beside = is_full.then(|| Beside::start(folder)).transpose()?;
    let ran = run.tests(jobs)?;
    if let Some(beside) = beside {
        run.wait(beside)?;
        // Nothing else runs now: the servers of all set-ups run at once.
        run.step("soak");
        let soaked = soak::soak(&["--hits", sizes::SOAK_HITS])?;
        run.summary.read_soak(&soaked.shown);
        run.failures.extend(soaked.failures());
    }
    run.judge_again(ran)?;
    run.end(is_full)
}

impl Run {
    fn new(before: u64) -> Self {
        let (name, took) =
            ("== before the tests are built".to_owned(), Duration::from_secs(before));
        let now = Instant::now();
        Self {
            begun: now,
            before,
            step: (String::new(), now),
            rows: vec![Row { name, took, processor: None }],
            failures: BTreeSet::new(),
            summary: Summary::default(),
        }
    }

    fn seconds(&self) -> u64 {
        self.before + self.begun.elapsed().as_secs()
    }

    fn step(&mut self, title: &str) {
        let (name, begun) = std::mem::replace(&mut self.step, (title.to_owned(), Instant::now()));
        if !name.is_empty() {
            let name = format!("== {name}");
            self.rows.push(Row { name, took: begun.elapsed(), processor: None });
        }
        println!("\n== {title} ({}s)", self.seconds());
    }

    fn tests(&mut self, mut jobs: Vec<Job>) -> io::Result<Vec<Ran>> {
        let lanes = sizes::lanes(sizes::processors());
        self.step(&format!("tests, {lanes} programs at a time"));
        jobs.sort_by(|a, b| lanes::place(&a.name).cmp(&lanes::place(&b.name)));
        let asked = std::env::var("RUST_TEST_THREADS").ok().and_then(|asked| asked.parse().ok());
        let ran = lanes::side_by_side(jobs, lanes, |job| -> io::Result<Ran> {
            let threads = sizes::threads(&job.name, sizes::processors(), asked);
            let ended = job.run(&[], &[("RUST_TEST_THREADS", threads.to_string())])?;
            let verdict = Verdict::new(ended.status, &ended.text);
            let (seconds, processor) = (ended.took.as_secs(), ended.processor);
            let has_failed = ended.status != 0 || matches!(verdict, Verdict::Failed(_));
            let shown = summary::highlights(&ended.text, has_failed);
            // At once, so that what two programs say does not mix.
            print!("-- {} ({seconds}s, {processor:.0}s of processor)\n{shown}", job.name);
            Ok(Ran { job, ended, verdict })
        });
        let mut ran = ran.into_iter().collect::<io::Result<Vec<_>>>()?;
        ran.sort_by(|a, b| a.job.cmp(&b.job));
        for Ran { job, ended, verdict } in &ran {
            let (name, processor) = (job.name.clone(), Some(ended.processor));
            self.rows.push(Row { name, took: ended.took, processor });
            if let Verdict::Failed(why) = verdict {
                self.failures.insert(format!("{}: {why}", job.name));
            }
        }
        Ok(ran)
    }

    fn wait(&mut self, beside: Beside) -> io::Result<()> {
        self.step("checks that ran beside the tests");
        let (done, is_whole) = beside.wait()?;
        if !is_whole {
            self.failures.insert("the checks beside the tests were aborted".to_owned());
        }
        for check in done {
            print!("{}", check.shown());
            self.summary.read(&check.said);
            self.rows.push(check.row());
            if !check.is_passed {
                self.failures.insert(check.name);
            }
        }
        Ok(())
    }

    /// On busy processors an answer may come too late for a timing test. Such a test is judged again, with nothing
    /// beside it and more strictly. Two holders and falling fences are never excused. Then all outputs are final, and counted.
    fn judge_again(&mut self, ran: Vec<Ran>) -> io::Result<()> {
        if ran.iter().any(|ran| matches!(ran.verdict, Verdict::Doubtful(_))) {
            self.step("again, one at a time");
        }
        for Ran { job, mut ended, verdict } in ran {
            if let Verdict::Doubtful(doubt) = &verdict {
                self.judge_one(&job, &mut ended.text, doubt)?;
            }
            self.summary.read(&ended.text);
        }
        Ok(())
    }

    fn judge_one(&mut self, job: &Job, text: &mut String, doubt: &Doubt) -> io::Result<()> {
        let begun = Instant::now();
        let judged = again::judge(&job.name, doubt, |test| {
            let once = ("LOCK_TEST_REPEAT", "1".to_owned());
            let threads = test.map_or(sizes::TESTS_OF_A_PROGRAM_ALONE, |_| 1).to_string();
            let arguments = test.map_or(vec![], |test| vec!["--exact", test]);
            job.run(&arguments, &[("RUST_TEST_THREADS", threads), once])
        })?;
        let verdicts = judged.verdicts.join("\n");
        print!("{}", judged.said);
        println!("-- {} again ({}s)\n{verdicts}", job.name, begun.elapsed().as_secs());
        self.summary.judged_again += judged.verdicts.len();
        *text = judged.whole.unwrap_or_else(|| std::mem::take(text));
        if judged.is_failed {
            self.failures.insert(job.name.clone());
        } else {
            *text = summary::mended(text);
        }
        *text += &format!("\n{verdicts}\n");
        Ok(())
    }

    fn end(mut self, is_full: bool) -> io::Result<i32> {
        self.step("summary");
        let before = history::noted(&history::file(is_full), self.summary.judged_again)?;
        print!("{}", self.summary.text(&before));
        println!("took {}s; the slowest:", self.seconds());
        print!("{}", summary::table(std::mem::take(&mut self.rows)));
        self.failures.extend(self.summary.failures());
        if self.failures.is_empty() {
            return Ok(0);
        }
        eprintln!("FAILED:");
        self.failures.iter().for_each(|failure| eprintln!("{failure}"));
        Ok(1)
    }
}
