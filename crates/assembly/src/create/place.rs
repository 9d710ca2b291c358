//! Where a new array's metadata and data go on each member: mdadm's arithmetic, so that a member made here looks like one made
//! there. All quantities are sectors unless named otherwise.

use raidus_format::{MetadataVersion, bitmap};
use raidus_units::{Level, Sector, Sectors};

const KIB: u64 = 2;
const GIB: u64 = 1024 * 1024 * KIB;
/// Data starts at a multiple of this (1 MiB).
const DATA_ALIGN: u64 = 1024 * KIB;
/// mdadm leaves up to this before the data, for a later reshape to move into (128 MiB).
const HEADROOM_MAX: u64 = 128 * 1024 * KIB;
/// Room for the superblock at the front (4 KiB before it in 1.2) and the bad-block log.
const FRONT: u64 = 24;
/// Sectors of a partial parity log.
pub(crate) const PPL: Sectors = Sectors(2048);
/// Sectors of a bad-block log.
pub(crate) const BAD_BLOCK_LOG: u64 = 8;
/// raid1 without a size given uses whole multiples of this.
const RAID1_ROUND: u64 = 64 * KIB;
/// A bitmap is never larger than this, header included.
pub(crate) const BITMAP_ROOM_MAX: u64 = 256;
/// Room for the bitmap between a 0.90 superblock and the end of its 64 KiB.
pub(crate) const BITMAP_ROOM_V090: u64 = 60 * KIB;
/// Smallest bitmap chunk chosen unasked, in bytes.
pub(crate) const BITMAP_CHUNK_DEFAULT: u64 = 64 << 20;
/// From this component size on, an array gets a bitmap unasked.
const BITMAP_AUTO: u64 = 100 * GIB;

/// Room set aside for a bitmap on a device, or for a component, of this size.
pub(crate) fn bitmap_reserve(size: Sectors) -> Sectors {
    Sectors(match size.0 {
        0..128 => 0,
        s if s - 128 >= 200 * GIB => 256,
        s if s - 8 > 8 * GIB => 128,
        _ => 8,
    })
}

/// Where data starts when nobody says otherwise. `log` is the room for a partial parity log, which takes that of a bitmap.
pub(crate) fn data_offset(metadata: MetadataVersion, device: Sectors, chunk: Sectors, log: Option<Sectors>) -> Sectors {
    if !matches!(metadata, MetadataVersion::V1_1 | MetadataVersion::V1_2) {
        return Sectors::ZERO;
    }
    let mut headroom = HEADROOM_MAX;
    // At most a thousandth of the device, but at least two chunks.
    while headroom.saturating_mul(1024) > device.0 && (chunk.is_zero() || headroom / 2 >= chunk.0.saturating_mul(2)) {
        headroom /= 2;
    }
    Sectors(FRONT + log.unwrap_or_else(|| bitmap_reserve(device)).0 + headroom).round_up(Sectors(DATA_ALIGN))
}

/// What of a device can hold data. `log` as in [`data_offset`].
pub(crate) fn usable(
    metadata: MetadataVersion,
    device: Sectors,
    data_offset: Sectors,
    log: Option<Sectors>,
) -> Sectors {
    match metadata {
        MetadataVersion::V0_90 => metadata.superblock_at(device).map_or(Sectors::ZERO, Sector::from_start),
        MetadataVersion::V1_0 => {
            let whole = device.round_down(Sectors(8));
            let reserved = log.unwrap_or_else(|| bitmap_reserve(device));
            whole.saturating_sub(Sectors(FRONT) + reserved).saturating_sub(data_offset)
        }
        MetadataVersion::V1_1 | MetadataVersion::V1_2 => device.saturating_sub(data_offset),
    }
}

/// The component size that `usable` sectors give: whole chunks; for raid1 whole 64 KiB when nobody gave a size.
pub(crate) fn component(level: Level, usable: Sectors, chunk: Sectors) -> Sectors {
    match level {
        Level::Raid1 => usable.round_down(Sectors(RAID1_ROUND)),
        Level::Linear => usable,
        _ => usable.round_down(chunk),
    }
}

/// Whether mdadm gives an array a bitmap unasked.
pub(crate) fn bitmap_by_default(level: Level, component: Sectors) -> bool {
    level.is_redundant() && component.0 > BITMAP_AUTO
}

/// Room for the bitmap, header included.
fn bitmap_room(metadata: MetadataVersion, component: Sectors) -> Sectors {
    match metadata {
        MetadataVersion::V0_90 => Sectors(BITMAP_ROOM_V090),
        _ => Sectors(bitmap_reserve(component).0.min(BITMAP_ROOM_MAX)),
    }
}

/// The smallest bitmap chunk (bytes) whose bits fit in their room; `None` if there is no room at all.
pub(crate) fn bitmap_chunk_min(metadata: MetadataVersion, component: Sectors) -> Option<u64> {
    bitmap::smallest_chunk(component, bitmap_room(metadata, component), bitmap::CHUNK_MIN_CHOSEN)
}

/// The bitmap chunk chosen when nobody gives one, in bytes.
pub(crate) fn bitmap_chunk_default(metadata: MetadataVersion, component: Sectors) -> Option<u64> {
    Some(bitmap_chunk_min(metadata, component)?.max(BITMAP_CHUNK_DEFAULT))
}

/// Distance of the bitmap, or of the partial parity log, from the superblock.
pub(crate) fn bitmap_offset(metadata: MetadataVersion, bitmap: Sectors) -> i64 {
    match metadata {
        // Before the superblock, with the bad-block log in between.
        MetadataVersion::V1_0 => -(BAD_BLOCK_LOG as i64) - bitmap.0 as i64,
        _ => 8,
    }
}

/// What a member's superblock says about places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Device sector of the superblock.
    pub(crate) super_offset: Sector,
    /// Device sector of component address 0.
    pub(crate) data_offset: Sector,
    /// Sectors from there that may hold data.
    pub(crate) data_size: Sectors,
    /// Distance of the bad-block log from the superblock, if there is room for one.
    pub(crate) bad_block_log: Option<i64>,
}

/// Places on one device. `component` is the superblock's size field (0 for linear and raid0); `bitmap` the sectors of an
/// internal bitmap or a partial parity log.
pub(crate) fn place(
    metadata: MetadataVersion,
    device: Sectors,
    data_offset: Sectors,
    component: Sectors,
    bitmap: Option<Sectors>,
) -> Option<Placement> {
    let super_offset = metadata.superblock_at(device)?;
    let reserved = bitmap.unwrap_or_else(|| bitmap_reserve(component));
    Some(match metadata {
        MetadataVersion::V0_90 => Placement {
            super_offset,
            data_offset: Sector::ZERO,
            data_size: super_offset.from_start(),
            bad_block_log: None,
        },
        MetadataVersion::V1_0 => {
            let behind = super_offset.0.checked_sub(data_offset.0)?.checked_sub(component.0)?;
            let kept = behind.min(reserved.0 + BAD_BLOCK_LOG);
            Placement {
                super_offset,
                data_offset: Sector(data_offset.0),
                data_size: Sectors(super_offset.0 - data_offset.0 - kept),
                bad_block_log: (kept >= BAD_BLOCK_LOG).then_some(-(BAD_BLOCK_LOG as i64)),
            }
        }
        MetadataVersion::V1_1 | MetadataVersion::V1_2 => Placement {
            super_offset,
            data_offset: Sector(data_offset.0),
            data_size: Sectors(device.0.checked_sub(data_offset.0)?),
            bad_block_log: front_log(super_offset.0, data_offset.0, reserved.0),
        },
    })
}

/// The bad-block log in front of the data: behind the bitmap, or as late as possible where that does not fit.
fn front_log(super_offset: u64, data_offset: u64, reserved: u64) -> Option<i64> {
    let behind_bitmap = 8 + reserved;
    if super_offset + behind_bitmap + BAD_BLOCK_LOG <= data_offset {
        Some(behind_bitmap as i64)
    } else if super_offset + 8 + BAD_BLOCK_LOG <= data_offset {
        Some((data_offset - super_offset - BAD_BLOCK_LOG) as i64)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * KIB;

    fn offset(device: u64, chunk_kib: u64) -> u64 {
        data_offset(MetadataVersion::V1_2, Sectors(device), Sectors::from_kib(chunk_kib), None).0
    }

    #[test]
    fn data_offsets_are_mdadms() {
        let table = [
            (32 * MIB, 2048, 4096),
            (1000 * MIB, 2048, 4096),
            (GIB, 4096, 4096),
            (4 * GIB, 10240, 10240),
            (8 * GIB, 18432, 18432),
            (16 * GIB, 34816, 34816),
            (64 * GIB, 133120, 133120),
            (100 * GIB, 133120, 133120),
            (128 * GIB, 264192, 264192),
            (10 * 1024 * GIB, 264192, 264192),
        ];
        for (device, plain, chunked) in table {
            assert_eq!((offset(device, 0), offset(device, 512)), (plain, chunked), "{device} sectors");
        }
    }

    #[test]
    fn bad_block_logs_are_where_mdadm_puts_them() {
        let log = |device: u64, data: u64, component: u64, bitmap: Option<u64>| {
            let at =
                place(MetadataVersion::V1_2, Sectors(device), Sectors(data), Sectors(component), bitmap.map(Sectors));
            at.and_then(|p| p.bad_block_log)
        };
        assert_eq!(log(64 * MIB, 2048, 62 * MIB, None), Some(16));
        assert_eq!(log(64 * MIB, 2048, 0, None), Some(8));
        assert_eq!(log(64 * GIB, 133120, 63 * GIB, None), Some(136));
        assert_eq!(log(400 * GIB, 264192, 399 * GIB, None), Some(264));
        assert_eq!(log(64 * MIB, 32, 62 * MIB, None), Some(16));
        assert_eq!(log(64 * MIB, 24, 62 * MIB, None), Some(8));
        assert_eq!(log(64 * MIB, 16, 62 * MIB, None), None);
    }

    #[test]
    fn bitmaps_at_the_end_grow_towards_the_data() {
        let offset = |gib: u64| {
            let component = Sectors(gib * GIB - 1024);
            let chunk = bitmap_chunk_default(MetadataVersion::V1_0, component).expect("room");
            bitmap_offset(MetadataVersion::V1_0, bitmap::area(bitmap::bits(component, chunk)))
        };
        assert_eq!((offset(1), offset(4 * 1024), offset(10 * 1024)), (-16, -32, -56));
    }
}
