//! A load beside a sync: what clients feel of it, and how fast the sync is alone and under load.

use std::time::{Duration, Instant};

use raidus_engine::control::{Command, SyncRequest, SyncStatus};
use serde::Serialize;

use super::load::Plan;
use super::session::{Outcome, Running, wait_for};
use crate::error::Failure;

/// Which sync runs beside the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Beside {
    /// The last member is rebuilt.
    Recovery,
    /// Parity or copies are compared.
    Check,
    /// As after a crash: all members are brought to agree.
    Resync,
}

/// What was measured, per round.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub sync: Beside,
    /// Rounds of: the load alone, the load beside the sync.
    pub rounds: Vec<Round>,
    /// 99th percentile of latency beside the sync ÷ without, the median of the rounds.
    pub p99_ratio: f64,
    /// KiB per second and member while nobody else used the array.
    pub idle_kib_per_second: f64,
    /// The same beside the load, the median of the rounds.
    pub loaded_kib_per_second: f64,
    /// md's `sync_speed_min`.
    pub speed_min: u64,
    /// A sync came to its end during a measurement, so speeds are lower bounds, and less of the load was beside it.
    pub ended_early: bool,
}

/// One round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    pub p99_alone_us: f64,
    pub p99_beside_us: f64,
    pub requests_per_second_alone: f64,
    pub requests_per_second_beside: f64,
    pub kib_per_second: f64,
}

/// How long a sync is watched without a load.
const IDLE: Duration = Duration::from_secs(3);
/// A sync begins or ends within this time, or something is wrong.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures.
pub fn run(running: &Running, plan: &Plan, sync: Beside, rounds: u32) -> Result<Report, Failure> {
    let mut ended_early = false;
    let mut measured = Vec::new();
    for _ in 0..rounds.max(1) {
        let alone = running.load(plan)?;
        begin(running, sync)?;
        let (beside, speed, ended) = watched(running, || running.load(plan))?;
        ended_early |= ended;
        measured.push(round(&alone, &beside?, speed));
        if ended && sync != Beside::Check {
            break;
        }
        freeze(running)?;
    }
    let mut idle = 0.0;
    if sync == Beside::Check || !ended_early {
        begin(running, sync)?;
        let start = Instant::now();
        let over = || status(running).map_or(true, |s| s.action.is_none() || start.elapsed() > IDLE);
        let ((), speed, _) = watched(running, || {
            while !over() {
                std::thread::sleep(Duration::from_millis(1))
            }
        })?;
        idle = speed;
        freeze(running)?;
    }
    let median_of = |of: fn(&Round) -> f64| super::report::median(measured.iter().map(of).collect());
    Ok(Report {
        sync,
        p99_ratio: median_of(|r| r.p99_beside_us / r.p99_alone_us.max(f64::MIN_POSITIVE)),
        loaded_kib_per_second: median_of(|r| r.kib_per_second),
        idle_kib_per_second: idle,
        speed_min: status(running)?.speed_min,
        ended_early,
        rounds: measured,
    })
}

/// Does something while the sync runs. Gives the sync's speed meanwhile, and whether it came to its end.
fn watched<T>(running: &Running, what: impl FnOnce() -> T) -> Result<(T, f64, bool), Failure> {
    let (before, start) = (status(running)?, Instant::now());
    let result = what();
    let (after, took) = (status(running)?, start.elapsed());
    let ended = after.action.is_none();
    let (done, took) = match &after.last {
        Some(last) if ended => {
            let took = Duration::from_nanos(last.took.0).min(took);
            (last.end.from_start().0.saturating_sub(before.done.0), took)
        }
        _ => (after.done.0.saturating_sub(before.done.0), took),
    };
    Ok((result, done as f64 / 2.0 / took.as_secs_f64().max(1e-9), ended))
}

fn begin(running: &Running, sync: Beside) -> Result<(), Failure> {
    let request = if sync == Beside::Check { SyncRequest::Check } else { SyncRequest::Idle };
    let refused = |why| Failure::Bench(format!("the sync cannot be started: {why}"));
    running.handle.command(Command::Sync(request)).map_err(refused)?;
    let began = wait_for(PATIENCE, || status(running).is_ok_and(|s| s.action.is_some()));
    if began {
        Ok(())
    } else {
        Err(Failure::Bench("the sync did not begin, or ended at once; larger members help".to_owned()))
    }
}

fn freeze(running: &Running) -> Result<(), Failure> {
    let refused = |why| Failure::Bench(format!("the sync cannot be stopped: {why}"));
    running.handle.command(Command::Sync(SyncRequest::Freeze)).map_err(refused)?;
    let ended = wait_for(PATIENCE, || status(running).is_ok_and(|s| s.action.is_none()));
    if ended { Ok(()) } else { Err(Failure::Bench("the sync did not stop".to_owned())) }
}

fn status(running: &Running) -> Result<SyncStatus, Failure> {
    let ended = || Failure::Bench("the array ended while the load ran".to_owned());
    running.handle.status().map(|status| status.sync).ok_or_else(ended)
}

fn round(alone: &Outcome, beside: &Outcome, kib_per_second: f64) -> Round {
    let p99 = |outcome: &Outcome| super::report::transfers(&outcome.done).value_at_quantile(0.99) as f64 / 1e3;
    Round {
        p99_alone_us: p99(alone),
        p99_beside_us: p99(beside),
        requests_per_second_alone: alone.requests_per_second(),
        requests_per_second_beside: beside.requests_per_second(),
        kib_per_second,
    }
}
