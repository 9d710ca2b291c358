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
/// These can be set:
///   array_state           readonly; active or clean
///   sync_action           check, repair, idle, frozen
///   sync_min, sync_max    sectors: where a check or repair begins and ends
///   sync_speed_min, _max  KiB per second and member; system
///   dev-DEVICE/state      faulty, remove, want_replacement
#[derive(Args, Debug)]
#[command(after_long_help = SET_AFTER, verbatim_doc_comment)]
pub struct SetArgs {
    /// The array: the name it runs under, its own name, or its UUID.
    #[arg(value_name = "NAME")]
    name: String,
    /// The attribute.
    attribute: String,
    /// Its value.
    value: String,
}

const SET_AFTER: &str = "\
Examples:
  raidus set md0 array_state readonly
  raidus set md0 sync_speed_max 50000
  raidus set md0 dev-sdb/state want_replacement";

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
