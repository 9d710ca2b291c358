//! What is logged: to standard error, which for arrays in the background becomes a file in the run directory.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::output::say;

/// Starts logging. Processes that hold an array log what happens to it without being asked.
pub fn start(verbose: u8, holds_array: bool) {
    let default = match verbose + u8::from(holds_array) {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let wanted = std::env::var("RAIDUS_LOG").ok().and_then(|text| {
        let parsed = text.parse::<Targets>();
        if let Err(error) = &parsed {
            say(format_args!("RAIDUS_LOG: '{text}' is not understood ({error}); see raidus --help"));
        }
        parsed.ok()
    });
    // Of libraries only what is alarming.
    let filter = wanted.unwrap_or_else(|| {
        let own = ["raidus", "raidus_runtime", "raidus_nbd", "raidus_fuse", "raidus_engine"];
        Targets::new().with_default(LevelFilter::WARN).with_targets(own.map(|target| (target, default)))
    });
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(lines).with(filter).init();
}
