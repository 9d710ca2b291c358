//! The short forms: `--brief`, `--export`, `--query`.

use raidus_format::{ArrayFacts, MetadataVersion, RawSuperblock};

use crate::examine::array_size;
use crate::human_size_brief;
use crate::level_name;
use crate::view::{ArrayView, DeviceRole};

/// `mdadm --detail --brief`: a line for mdadm.conf.
pub fn detail_brief(array: &ArrayView) -> String {
    let mut line = format!("ARRAY {}", array.path);
    if let Some(metadata) = array.metadata {
        line.push_str(&format!(" metadata={metadata}"));
    }
    let spares = array.devices.iter().filter(|d| d.role == DeviceRole::Spare).count();
    if spares > 0 {
        line.push_str(&format!(" spares={spares}"));
    }
    if !array.array_name.is_empty() {
        line.push_str(&format!(" name={}", array.array_name));
    }
    line + &format!(" UUID={}\n", array.uuid)
}

/// `mdadm --detail --export`: for scripts.
pub fn detail_export(array: &ArrayView) -> String {
    let mut out = format!("MD_LEVEL={}\nMD_DEVICES={}\n", array.level, array.raid_disks);
    if let Some(metadata) = array.metadata {
        out.push_str(&format!("MD_METADATA={metadata}\n"));
    }
    out.push_str(&format!("MD_UUID={}\n", array.uuid));
    if !array.array_name.is_empty() {
        out.push_str(&format!("MD_NAME={}\n", array.array_name));
    }
    for device in &array.devices {
        let role = match device.role {
            DeviceRole::InSync(s) | DeviceRole::Rebuilding(s) | DeviceRole::Replacing(s) => s.to_string(),
            DeviceRole::Journal => "journal".to_owned(),
            DeviceRole::Spare | DeviceRole::Faulty => "spare".to_owned(),
        };
        let key: String = device.path.trim_start_matches('/').chars().map(key_char).collect();
        out.push_str(&format!("MD_DEVICE_{key}_ROLE={role}\nMD_DEVICE_{key}_DEV={}\n", device.path));
    }
    out
}

fn key_char(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '_' }
}

/// `mdadm --examine --brief` of one array: lines for mdadm.conf. `path` is where the array would be (`/dev/md/name`), `spares`
/// how many of the devices looked at are its spares.
pub fn examine_brief(sb: &RawSuperblock, path: &str, spares: usize) -> String {
    let array = sb.array();
    let spares = if spares == 0 { String::new() } else { format!("   spares={spares}\n") };
    if array.metadata == MetadataVersion::V0_90 {
        return format!("ARRAY {path} UUID={}\n{spares}", array.uuid);
    }
    let name = if array.name.is_empty() { String::new() } else { format!(" name={}", array.name) };
    format!("ARRAY {path}  metadata={} UUID={}{name}\n{spares}", array.metadata, array.uuid)
}

/// `mdadm --examine --export`: for scripts.
pub fn examine_export(sb: &RawSuperblock) -> String {
    let (array, member) = (sb.array(), sb.member());
    let mut out = format!("MD_LEVEL={}\nMD_DEVICES={}\n", level_name(array.level_number), array.raid_disks);
    if array.metadata.is_v1() {
        if !array.name.is_empty() {
            out.push_str(&format!("MD_NAME={}\n", array.name));
        }
        if let Some(size) = array_size(&array) {
            out.push_str(&format!("MD_ARRAY_SIZE={}\n", human_size_brief(size.saturating_mul(512), true)));
        }
    }
    out.push_str(&format!("MD_UUID={}\nMD_UPDATE_TIME={}\n", array.uuid, array.utime.secs));
    if let Some(uuid) = member.device_uuid {
        out.push_str(&format!("MD_DEV_UUID={uuid}\n"));
    }
    out + &format!("MD_EVENTS={}\n", array.events)
}

/// `mdadm --query` of an array. `more` is the command that tells more.
pub fn query_array(array: &ArrayView, more: &str) -> String {
    let spares = array.devices.iter().filter(|d| d.role == DeviceRole::Spare).count();
    let size = human_size_brief(array.array_size.0.saturating_mul(512), false);
    let plural = if spares == 1 { "" } else { "s" };
    format!(
        "{path}: {size} {level} {n} devices, {spares} spare{plural}. Use {more} for more detail.\n",
        path = array.path,
        level = array.level,
        n = array.raid_disks
    )
}

/// `mdadm --query` of a device: its superblock's facts and number in the array, and the path of that array if it runs. `more` is
/// the command that tells more.
pub fn query_device(device: &str, member: Option<(&ArrayFacts, u32)>, running: Option<&str>, more: &str) -> String {
    let Some((array, number)) = member else { return format!("{device}: is not an md array\n") };
    let (state, path) = running.map_or(("inactive", "array"), |path| ("active", path));
    let (level, n) = (level_name(array.level_number), array.raid_disks);
    format!(
        "{device}: is not an md array\n{device}: device {number} in {n} device {state} {level} {path}.  \
         Use {more} for more detail.\n"
    )
}
