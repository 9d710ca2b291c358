//! `mdadm --examine-bitmap` (`-X`).

use raidus_format::MetadataVersion;
use raidus_format::bitmap::{BitArray, BitmapSuper, ChunkStates, uuid_in_bitmap};

use crate::human_size;

/// What a bitmap says of its chunks.
#[derive(Clone, Debug)]
pub enum BitmapContent<'a> {
    /// Whether members may differ there.
    Bits(BitArray),
    /// The states of a lockless one.
    States(ChunkStates<'a>),
}

/// The bitmap of a device or in a file. `metadata`: of the array, since 0.90 stores its uuid in another byte order. `content`: if
/// it could be read.
pub fn examine_bitmap(
    file: &str,
    superblock: &BitmapSuper,
    metadata: MetadataVersion,
    content: Option<&BitmapContent<'_>>,
) -> String {
    let header = superblock.header();
    let mut out = String::new();
    let mut line = |label: &str, value: String| out.push_str(&format!("{label:>16} : {value}\n"));
    line("Filename", file.to_owned());
    line("Magic", format!("{:08x}", header.magic.get()));
    line("Version", header.version.get().to_string());
    line("UUID", uuid_in_bitmap(metadata, None, superblock.uuid()).to_string());
    line("Events", superblock.events().to_string());
    line("Events Cleared", superblock.events_cleared().to_string());
    line("State", state(superblock).to_owned());
    line("Chunksize", chunk(superblock.chunk()));
    line("Daemon", format!("{}s flush period", superblock.daemon_sleep()));
    line("Write Mode", write_mode(superblock.write_behind()));
    let size = superblock.sync_size();
    line("Sync Size", format!("{}{}", size.kib(), human_size(size.0.saturating_mul(512))));
    match content {
        None => {}
        Some(BitmapContent::Bits(bits)) => {
            let (all, dirty) = (bits.len(), bits.count_ones());
            let percent = 100.0 * dirty as f64 / all.max(1) as f64;
            line("Bitmap", format!("{all} bits (chunks), {dirty} dirty ({percent:.1}%)"));
        }
        Some(BitmapContent::States(states)) => {
            let counts = states.counts();
            let all: u64 = counts.iter().map(|(_, n)| n).sum();
            let counts: Vec<String> = counts.iter().map(|(state, n)| format!("{n} {}", state.name())).collect();
            line("Bitmap", format!("{all} chunks: {}", counts.join(", ")));
        }
    }
    out
}

fn state(superblock: &BitmapSuper) -> &'static str {
    if superblock.is_stale() { "Out of date" } else { "OK" }
}

fn write_mode(behind: u32) -> String {
    if behind == 0 { "Normal".to_owned() } else { format!("Allow write behind, max {behind}") }
}

fn chunk(bytes: u64) -> String {
    let mut size = bytes;
    for unit in ["Bytes", "KB", "MB"] {
        if size < 1024 {
            return format!("{size} {unit}");
        }
        size /= 1024;
    }
    format!("{size} GB")
}
