//! `raidus wait`: until an array needs nothing.

use clap::Args;

use crate::control::client::find;
use crate::error::Failure;
use crate::live::Settling;
use crate::rundir::RunDir;
use crate::wait::while_doing;

/// Wait until nothing is being resynced, rebuilt or checked.
///
/// Neither is anything about to be then. Ends with status 1 and the reason if something is needed that will not happen by itself: because the array is read-only or
/// frozen, or what a rebuild needs cannot be read.
#[derive(Args, Debug)]
pub struct WaitArgs {
    /// Arrays: the name they run under, their own name, or their UUID.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// How long one request waits.
const SECONDS: u64 = 30;

/// The command.
pub fn run(args: WaitArgs) -> Result<(), Failure> {
    let dir = RunDir::find()?;
    for name in &args.names {
        let (array, _) = find(&dir, name)?;
        while_doing(format!("waiting for {}", array.name()), || {
            loop {
                match array.wait(SECONDS)? {
                    Settling::Settled => return Ok(()),
                    Settling::Busy => {}
                    Settling::Stuck(why) => return Err(Failure::Stuck { name: array.name().to_owned(), why }),
                }
            }
        })?;
    }
    Ok(())
}
