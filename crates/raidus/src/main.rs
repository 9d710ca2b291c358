//! raidus: Linux md arrays in user space.
//!
//! One file per command. Each parses its arguments fully before it touches a device; see [`cli`] for what is common to them.
#![forbid(unsafe_code)]

mod assemble;
mod attribute;
mod bench;
mod cli;
mod control;
mod create;
mod daemon;
mod detach;
mod detail;
mod error;
mod events;
mod examine;
mod grow;
mod host;
mod image;
mod live;
mod log;
mod look;
mod manage;
mod map;
mod mount;
mod mounted;
mod output;
mod portrait;
mod query;
mod rundir;
mod scrub;
mod serve;
mod settle;
mod signatures;
mod sizes;
mod statedir;
mod status;
mod stop;
mod wait;
mod zero;

use std::process::ExitCode;
use std::sync::Arc;

use cli::Command;
use error::Failure;

fn main() -> ExitCode {
    // A file that grows past `ulimit -f` shall give an error, not end the process. Should that not be possible, it ends.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors. A closed output is none either.
            let _ = error.print();
            return ExitCode::from(error.exit_code().clamp(0, 255) as u8);
        }
    };
    log::start(cli.verbose, cli.command.runs_an_array());
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if failure.is_worth_saying() {
                output::say(&failure);
            }
            failure.exit_code()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Create(args) => create::run(args),
        Command::Assemble(args) => assemble::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Examine(args) => examine::run(args),
        Command::Detail(args) => detail::run(args),
        Command::Query(args) => query::run(args),
        Command::Status(args) => status::run(args),
        Command::Stop(args) => stop::run(args),
        Command::Add(args) => manage::add(args),
        Command::ReAdd(args) => manage::re_add(args),
        Command::Fail(args) => manage::fail(args),
        Command::Remove(args) => manage::remove(args),
        Command::Replace(args) => manage::replace(args),
        Command::Grow(args) => grow::run(args),
        Command::Scrub(args) => scrub::run(args),
        Command::Wait(args) => settle::run(args),
        Command::Events(args) => events::run(args),
        Command::Get(args) => attribute::get(args),
        Command::Set(args) => attribute::set(args),
        Command::Map(args) => map::run(args),
        Command::Bench(args) => bench::run(*args),
        Command::ZeroSuperblock(args) => zero::run(args),
        Command::Hold => detach::hold(),
    }
}
