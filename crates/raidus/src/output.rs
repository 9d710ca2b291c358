//! Standard output. A reader that went away (`| head`) is no error and no panic.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use crate::error::Failure;

/// Writes text as it is.
pub fn text(text: impl Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Writes a value as JSON, in a form for people as well as programs.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::Output(e.into()))?;
    self::text(text + "\n")
}

/// Says something to the user, in mdadm's way: on standard error, with the program's name before it.
pub fn say(message: impl Display) {
    // If nobody listens there is nobody to tell.
    let _ = writeln!(io::stderr(), "raidus: {message}");
}
