//! `raidus grow`: changes of a running array.

use clap::{Args, ValueEnum};

use crate::control::client::find;
use crate::error::Failure;
use crate::live::grow::{Grow, Grown};
use crate::output::say;
use crate::rundir::RunDir;
use crate::sizes::parse_size;

/// Give a running array a write-intent bitmap, or take it away.
///
/// The bitmap says in which places writes were under way: after a crash only those are resynced, and a member that was away for a
/// while is brought up to date by copying only what it missed (`raidus re-add`). It lies between metadata and data of each member, where
/// mdadm puts it, and costs a little writing. Clients go on; their writes wait for a moment while the change is made. It cannot be made while
/// members are being resynced or rebuilt.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct GrowArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// internal: a bitmap on the members; none: no bitmap.
    #[arg(short, long, value_enum, required = true)]
    bitmap: Wanted,
    /// What one bit covers, in KiB or with K, M, G: a power of two; default: 64M, or more where that would not fit.
    ///
    /// A small chunk makes resyncs shorter and costs more writes of the bitmap.
    #[arg(long, value_name = "SIZE")]
    bitmap_chunk: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wanted {
    Internal,
    None,
}

const AFTER: &str = "\
Examples:
  raidus grow md0 --bitmap=internal
  raidus grow md0 --bitmap=internal --bitmap-chunk=16M
  raidus grow md0 --bitmap=none";

/// The command.
pub fn run(args: GrowArgs) -> Result<(), Failure> {
    let chunk = match (&args.bitmap_chunk, args.bitmap) {
        (Some(_), Wanted::None) => return Err(Failure::Usage("--bitmap-chunk: needs --bitmap=internal".to_owned())),
        (Some(text), _) => {
            let size = parse_size(text).map_err(|e| Failure::Usage(format!("--bitmap-chunk: {e}")))?;
            if !size.bytes().is_power_of_two() {
                return Err(Failure::Usage(format!("--bitmap-chunk: '{text}' is not a power of two")));
            }
            Some(size.bytes())
        }
        (None, _) => None,
    };
    let wanted = if args.bitmap == Wanted::None { Grow::NoBitmap } else { Grow::Bitmap { chunk } };
    let (array, _) = find(&RunDir::find()?, &args.name)?;
    let Grown { already, bitmap_chunk } = array.grow(wanted)?;
    let name = array.name();
    match (bitmap_chunk.map(|bytes| bytes / 1024), already) {
        (Some(kib), true) => say(format_args!("{name} has a write-intent bitmap already, with {kib} KiB per bit")),
        (Some(kib), false) => say(format_args!("write-intent bitmap added to {name}, with {kib} KiB per bit")),
        (None, true) => say(format_args!("{name} has no write-intent bitmap")),
        (None, false) => say(format_args!("write-intent bitmap removed from {name}")),
    }
    Ok(())
}
