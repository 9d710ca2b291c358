//! `cargo xtask fuzz`: every fuzz target, on stable Rust; a repeatable walk, or a search at random.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;

use crate::shell;

/// Inputs that once found something, one directory per target; every run begins with them.
const SEEDS: &str = "fuzz/seeds";
/// However slow the machine, a repeatable walk ends after so many seconds per target.
const CAP_SECONDS: u32 = 120;

/// How long `fuzz` runs.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Inputs for each target. The walk is the same every time, unless the target or what it tests has changed.
    #[arg(long, default_value_t = 200_000)]
    runs: u32,
    /// Search at random instead, for so many seconds for each target, going on from what earlier searches have learnt.
    #[arg(long, conflicts_with = "runs")]
    seconds: Option<u32>,
    /// Only this target.
    target: Option<String>,
}

/// Runs the targets in `fuzz/fuzz_targets`. Without a sanitizer, which stable Rust does not have: the parsers have no unsafe
/// code, so a panic is what there is to find.
pub fn run(args: &Args) -> Result<()> {
    shell::install_cargo_tool("cargo-fuzz")?;
    let targets = targets(args.target.as_deref())?;
    for target in &targets {
        match args.seconds {
            Some(seconds) => search(target, seconds)?,
            None => walk(target, args.runs)?,
        }
    }
    let each = args.seconds.map_or_else(|| format!("{} inputs", args.runs), |seconds| format!("{seconds} s"));
    println!("{} targets, {each} each: no panic", targets.len());
    Ok(())
}

fn targets(only: Option<&str>) -> Result<Vec<String>> {
    let dir = Path::new("fuzz/fuzz_targets");
    let mut targets: Vec<String> = fs::read_dir(dir)
        .with_context(|| format!("cannot list {}", dir.display()))?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .filter(|name| only.is_none_or(|t| t == name))
        .collect();
    targets.sort();
    if targets.is_empty() {
        bail!("no target is called '{}': see {}", only.unwrap_or_default(), dir.display());
    }
    Ok(targets)
}

/// The same inputs every time: a fixed seed, a corpus of its own that holds nothing but the known inputs, and no second look
/// at that directory, which would come when the clock says.
fn walk(target: &str, runs: u32) -> Result<()> {
    let corpus = fresh_corpus(target)?;
    let corpus = corpus.to_str().context("the target directory's path is not UTF-8")?;
    let (runs, cap) = (format!("-runs={runs}"), format!("-max_total_time={CAP_SECONDS}"));
    play(target, corpus, &["-seed=1", "-reload=0", &runs, &cap])
}

fn search(target: &str, seconds: u32) -> Result<()> {
    let corpus = Path::new("fuzz/corpus").join(target);
    fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    copy_seeds(target, &corpus)?;
    play(target, &format!("fuzz/corpus/{target}"), &[&format!("-max_total_time={seconds}")])
}

fn play(target: &str, corpus: &str, options: &[&str]) -> Result<()> {
    let mut run = vec!["cargo", "fuzz", "run", "-s", "none", target, corpus, "--"];
    run.extend(options);
    run.extend(["-max_len=8192", "-rss_limit_mb=1024"]);
    shell::call(&run)
}

fn fresh_corpus(target: &str) -> Result<PathBuf> {
    let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("fuzz/target"), PathBuf::from);
    let corpus = std::path::absolute(base.join("walk").join(target))?;
    if corpus.exists() {
        fs::remove_dir_all(&corpus).with_context(|| format!("cannot empty {}", corpus.display()))?;
    }
    fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    copy_seeds(target, &corpus)?;
    Ok(corpus)
}

fn copy_seeds(target: &str, corpus: &Path) -> Result<()> {
    let seeds = Path::new(SEEDS).join(target);
    if !seeds.exists() {
        return Ok(());
    }
    for seed in fs::read_dir(&seeds).with_context(|| format!("cannot list {}", seeds.display()))? {
        let seed = seed?;
        let to = corpus.join(seed.file_name());
        fs::copy(seed.path(), &to).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}
