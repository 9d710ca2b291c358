//! The last things that happened, for the report of a failure.

use std::collections::VecDeque;

use raidus_units::Nanos;

/// Lines kept.
const LINES_MAX: usize = 400;

/// A bounded record of events. Off unless asked for: a failing seed is simply played again with it on.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    on: bool,
    all: bool,
    lines: VecDeque<String>,
}

impl Trace {
    /// Records nothing.
    pub(crate) fn off() -> Trace {
        Trace::default()
    }

    /// Keeps the last lines; with `all`, prints every one as it comes.
    pub(crate) fn on(all: bool) -> Trace {
        Trace { on: true, all, lines: VecDeque::new() }
    }

    pub(crate) fn note(&mut self, now: Nanos, line: impl FnOnce() -> String) {
        if !self.on {
            return;
        }
        let line = format!("{:>12.3} {}", now.0 as f64 / 1e6, line());
        if self.all {
            eprintln!("{line}");
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
