//! `raidus get` and `raidus set`: md's attributes.

use clap::Args;

use crate::control::client::find;
use crate::error::Failure;
use crate::live::attributes::Attribute;
use crate::output;
use crate::rundir::RunDir;

/// Show attributes of a running array, as /sys/block/mdN/md has them.
#[derive(Args, Debug)]
#[command(after_long_help = GET_AFTER)]
pub struct GetArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// One attribute, such as sync_action or dev-sdb/state; default: all, with their names.
    attribute: Option<String>,
    /// Print JSON: an object of names and values.
    #[arg(long)]
    json: bool,
}

const GET_AFTER: &str = "\
Examples:
  raidus get md0
  raidus get md0 mismatch_cnt
  raidus get md0 dev-sdb/state";

/// Set an attribute of a running array, as writing to /sys/block/mdN/md does
///
/// These can be set; the command returns when it is so:
///   array_state           readonly: writes under way end, the array is marked clean, then writes
///                         are refused; active or clean: they are accepted again; read-auto: the
///                         first write makes it active; suspended: every request waits
///   suspend_lo, _hi       sectors of the array: writes to what lies between wait (0 and 0: none)
///   sync_action           check, repair, idle, frozen
///   sync_min, sync_max    sectors: where a check or repair begins and ends; max
///   sync_speed_min, _max  KiB per second and member; system
///   safe_mode_delay       seconds without a write until the array is marked clean; 0: never
///   bitmap/location       internal, none (see `raidus help grow`)
///   max_read_errors       a member with more corrected read errors within about an hour is failed
///   fail_last_dev         1: a mirror's last copy may fail like any other; 0: it stays in use
///   dev-DEVICE/state      faulty, remove, re-add, want_replacement; writemostly, -writemostly: read
///                         it only if no other copy can be read, or as any other
///   dev-DEVICE/errors     the count of corrected read errors to go on from
///   dev-DEVICE/bad_blocks SECTOR COUNT: note sectors of the device as bad
#[derive(Args, Debug)]
#[command(after_long_help = SET_AFTER, verbatim_doc_comment)]
pub struct SetArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// The attribute.
    attribute: String,
    /// Its value.
    #[arg(allow_hyphen_values = true)]
    value: String,
}

const SET_AFTER: &str = "\
Examples:
  raidus set md0 array_state readonly
  raidus set md0 sync_speed_max 50000
  raidus set md0 dev-sdb/state want_replacement
  raidus set md0 suspend_hi 2048           # writes to the first MiB wait …
  raidus set md0 suspend_hi 0              # … and go on";

/// `raidus get`.
pub fn get(args: GetArgs) -> Result<(), Failure> {
    let (array, _) = find(&RunDir::find()?, &args.name)?;
    let all = array.attributes()?;
    let shown: Vec<&Attribute> =
        all.iter().filter(|a| args.attribute.as_ref().is_none_or(|wanted| *wanted == a.name)).collect();
    if let (true, Some(wanted)) = (shown.is_empty(), &args.attribute) {
        return Err(Failure::NoAttribute { name: array.name().to_owned(), attribute: wanted.clone() });
    }
    if args.json {
        let object: serde_json::Map<String, serde_json::Value> =
            shown.iter().map(|a| (a.name.clone(), a.value.clone().into())).collect();
        return output::json(&object);
    }
    let line = |a: &&Attribute| match args.attribute {
        Some(_) => format!("{}\n", a.value),
        None => format!("{}: {}\n", a.name, a.value),
    };
    output::text(shown.iter().map(line).collect::<String>())
}

/// `raidus set`.
pub fn set(args: SetArgs) -> Result<(), Failure> {
    let (array, _) = find(&RunDir::find()?, &args.name)?;
    array.set(&Attribute { name: args.attribute, value: args.value })?;
    Ok(())
}
