//! Shows that something takes its time, to people at a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Does `work`, with a spinner and `what` beside it if standard error is a terminal.
pub fn while_doing<T>(what: String, work: impl FnOnce() -> T) -> T {
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
    let bar = ProgressBar::new_spinner().with_message(what);
    // Hidden by itself where there is no terminal.
    let bar = if let Ok(style) = style { bar.with_style(style) } else { bar };
    bar.enable_steady_tick(Duration::from_millis(200));
    let result = work();
    bar.finish_and_clear();
    result
}
