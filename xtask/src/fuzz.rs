//! `cargo xtask fuzz`: every fuzz target for a bounded time, on stable Rust.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args as ClapArgs;

use crate::shell;

/// How long `fuzz` runs.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Only this target.
    target: Option<String>,
}

/// Runs the targets in `fuzz/fuzz_targets`. Without a sanitizer, which stable Rust does not have: the parsers have no unsafe
/// code, so a panic is what there is to find.
pub fn run(args: &Args) -> Result<()> {
    shell::install_cargo_tool("cargo-fuzz")?;
    let dir = Path::new("fuzz/fuzz_targets");
    let mut targets: Vec<String> = std::fs::read_dir(dir)
        .with_context(|| format!("cannot list {}", dir.display()))?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .filter(|name| args.target.as_ref().is_none_or(|t| t == name))
        .collect();
    targets.sort();
    let time = format!("-max_total_time={}", args.seconds);
    for target in &targets {
        let run = ["cargo", "fuzz", "run", "-s", "none", target, "--", &time, "-max_len=8192", "-rss_limit_mb=1024"];
        shell::call(&run)?;
    }
    println!("{} targets, {} s each: no panic", targets.len(), args.seconds);
    Ok(())
}
