//! `cargo xtask sim`: many seeds, or one to look at.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use raidus_sim::{Failure, Options, Plant, Stats, run_seed};

/// Arguments of `cargo xtask sim`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many seeds to play.
    #[arg(long, default_value_t = 1000, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0, conflicts_with = "seed")]
    start: u64,
    /// Threads; each plays whole seeds. Default: one per core.
    #[arg(long)]
    jobs: Option<usize>,
    /// Play this seed only.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event.
    #[arg(short, long, requires = "seed")]
    verbose: bool,
    /// Go on after a failure, up to this many.
    #[arg(long, default_value_t = 1)]
    failures: usize,
    /// Pretend a mistake, to see that it is found (a name, or `list`).
    #[arg(long)]
    plant: Option<String>,
}

/// Plays the seeds; an error if one fails.
pub fn run(args: &Args) -> Result<()> {
    let plant = match args.plant.as_deref() {
        None => Plant::Honest,
        Some(name) => plant(name)?,
    };
    // Panics of the engine are reported with their seed; their own messages would only interleave.
    std::panic::set_hook(Box::new(|_| {}));
    let options = Options { plant, verbose: args.verbose };
    let (start, seeds) = args.seed.map_or((args.start, args.seeds), |seed| (seed, 1));
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let began = Instant::now();
    let (stats, failures) = play(start, seeds, jobs, args.failures, &options);
    report(&stats, began.elapsed().as_secs_f64());
    for failure in &failures {
        print_failure(failure, &options);
    }
    if failures.is_empty() { Ok(()) } else { bail!("{} seeds failed", failures.len()) }
}

fn plant(name: &str) -> Result<Plant> {
    let Some(plant) = Plant::ALL.into_iter().find(|p| format!("{p:?}").eq_ignore_ascii_case(name)) else {
        bail!("no such mistake '{name}'; there are {:?}", Plant::ALL);
    };
    Ok(plant)
}

/// Long runs say where they are this often, on standard error.
const WORD_EVERY: Duration = Duration::from_secs(30);

fn play(start: u64, seeds: u64, jobs: usize, failures_max: usize, options: &Options) -> (Stats, Vec<Failure>) {
    let next = AtomicU64::new(0);
    let total = Mutex::new((Stats::default(), Vec::new()));
    let said = Mutex::new(Instant::now());
    let worker = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= seeds {
                return;
            }
            let outcome = run_seed(start + n, options);
            let mut total = total.lock().expect("no thread panics while holding it");
            match outcome {
                Ok(stats) => total.0.add(&stats),
                Err(failure) => {
                    eprintln!("seed {} failed: {}", failure.seed, failure.what);
                    total.1.push(*failure);
                }
            }
            let mut said = said.lock().expect("no thread panics while holding it");
            if said.elapsed() >= WORD_EVERY {
                *said = Instant::now();
                eprintln!("{} of {seeds} seeds, {} failed", total.0.seeds, total.1.len());
            }
            if total.1.len() >= failures_max {
                next.store(seeds, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| (0..jobs.max(1)).for_each(|_| drop(scope.spawn(worker))));
    total.into_inner().expect("all threads have ended")
}

fn report(stats: &Stats, seconds: f64) {
    println!("{stats}\n{:.1} seeds/s", stats.seeds as f64 / seconds.max(1e-9));
}

fn print_failure(failure: &Failure, options: &Options) {
    println!("\n{}", failure.scenario);
    for line in &failure.trace {
        println!("{line}");
    }
    println!("seed {} failed: {}", failure.seed, failure.what);
    let plant = if options.plant == Plant::Honest { String::new() } else { format!(" --plant {:?}", options.plant) };
    println!("again: cargo xtask sim --seed {}{plant} -v", failure.seed);
}
