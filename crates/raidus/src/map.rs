//! `raidus map`: what is where, from the array to its members and back.

use std::path::PathBuf;

use clap::Args;

use crate::control::client::find;
use crate::control::server::answer_map;
use crate::control::{MapAnswer, MapRequest};
use crate::error::Failure;
use crate::live::chart::Chart;
use crate::live::members::Named;
use crate::rundir::RunDir;
use crate::{look, output, sizes};

/// Tell what is where: from an array to its members, or back.
///
/// Where a byte of the array is and what guards it, or what a sector of a member holds.
/// The array is a running one, or devices that could be started; nothing is written to them.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER)]
pub struct MapArgs {
    /// The name of a running array, or the member devices of one that is not running.
    #[arg(required = true, value_name = "NAME|DEVICE")]
    words: Vec<PathBuf>,
    /// A member and one of its sectors of 512 bytes, counted from the start of the device.
    #[arg(long, num_args = 2, value_names = ["DEVICE", "SECTOR"], required_unless_present = "array", conflicts_with = "array")]
    member: Option<Vec<String>>,
    /// A place in the array: bytes, or with K, M, G, T; s for sectors.
    #[arg(long, value_name = "OFFSET")]
    array: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
Examples:
  raidus map md0 --array 1G
  raidus map md0 --member /dev/sdc 40962
  raidus map d0.img d1.img d2.img --array 5000s";

/// The command.
pub fn run(args: MapArgs) -> Result<(), Failure> {
    let request = request(&args)?;
    let name = args.words[0].to_str().filter(|word| args.words.len() == 1 && !PathBuf::from(word).exists());
    let answer = match name {
        Some(name) => find(&RunDir::find()?, name)?.0.map(&request)?,
        None => offline(&args.words, &request)?,
    };
    if args.json {
        return match &answer {
            MapAnswer::Array(places) => output::json(places),
            MapAnswer::Member(report) => output::json(report),
        };
    }
    output::text(match answer {
        MapAnswer::Array(places) => places.iter().map(|place| place.text() + "\n").collect::<String>(),
        MapAnswer::Member(report) if report.places.is_empty() => {
            format!("{} sector {}: {}\n", report.device, report.sector, report.area)
        }
        MapAnswer::Member(report) => report.places.iter().map(|place| place.text() + "\n").collect(),
    })
}

fn request(args: &MapArgs) -> Result<MapRequest, Failure> {
    if let Some(offset) = &args.array {
        let byte = sizes::parse_bytes(offset).map_err(|e| Failure::Usage(format!("--array: {e}")))?;
        return Ok(MapRequest::Array(byte));
    }
    let Some([device, sector]) = args.member.as_deref() else {
        return Err(Failure::Usage("--member needs a device and a sector".to_owned()));
    };
    let sector =
        sector.parse().map_err(|_| Failure::Usage(format!("--member: '{sector}' is no number of a sector")))?;
    Ok(MapRequest::Member(Named::here(device.as_ref()), sector))
}

fn offline(devices: &[PathBuf], request: &MapRequest) -> Result<MapAnswer, Failure> {
    let candidates = look::candidates(devices);
    let options = raidus_assembly::Options { run: true, readonly: true, ..Default::default() };
    let decision = raidus_assembly::decide(&candidates, &options);
    let Some(assembled) = decision.start() else {
        return Err(raidus_runtime::OpenError::Refused(Box::new(decision)).into());
    };
    let chart = Chart::assembled(assembled, devices);
    let meant = |named: &Named| chart.find(|path| std::path::absolute(path).is_ok_and(|path| path == named.absolute));
    answer_map(&chart, request, meant).map_err(Failure::NoPlace)
}
