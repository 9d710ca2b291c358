//! `mdadm --examine-badblocks`.

use raidus_format::MetadataVersion;
use raidus_units::{Sector, Sectors};

/// The bad-block list of a device. `list`: device sector and length; `None` if the superblock has no log.
pub fn examine_badblocks(device: &str, metadata: MetadataVersion, list: Option<&[(Sector, Sectors)]>) -> String {
    match list {
        _ if metadata == MetadataVersion::V0_90 => "mdadm: 0.90 metadata does not support badblocks\n".to_owned(),
        None => format!("No bad-blocks list configured on {device}\n"),
        Some([]) => format!("Bad-blocks list is empty in {device}\n"),
        Some(list) => {
            let lines: String = list.iter().map(|(at, len)| format!("{:>20} for {} sectors\n", at.0, len.0)).collect();
            format!("Bad-blocks on {device}:\n{lines}")
        }
    }
}
