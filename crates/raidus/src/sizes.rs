//! Sizes and layouts as people type them on mdadm's command line.

use raidus_units::Sectors;

/// A size that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with a suffix.
    #[error(
        "'{0}' is not a size: a number of KiB is needed, or a number with K, M, G or T (or s for sectors of 512 bytes)"
    )]
    NotASize(String),
    /// More than a device can have.
    #[error("'{0}' is more than any device can hold")]
    TooLarge(String),
}

/// Devices are shorter than this, so sums of sizes cannot overflow.
const SECTORS_MAX: u64 = 1 << 54;

/// mdadm's sizes: KiB without a suffix, else K, M, G, T (powers of 1024), `s` for sectors.
pub fn parse_size(text: &str) -> Result<Sectors, SizeError> {
    parse_with_default(text, 2)
}

/// A size that no mdadm option has: bytes without a suffix.
pub fn parse_bytes(text: &str) -> Result<u64, SizeError> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        let bytes: u64 = text.parse().map_err(|_| SizeError::NotASize(text.to_owned()))?;
        return if bytes / 512 < SECTORS_MAX { Ok(bytes) } else { Err(SizeError::TooLarge(text.to_owned())) };
    }
    Ok(parse_size(text)?.bytes())
}

fn parse_with_default(text: &str, default: u64) -> Result<Sectors, SizeError> {
    let bad = || SizeError::NotASize(text.to_owned());
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let unit = match suffix {
        "" => default,
        "s" => 1,
        "k" | "K" | "KiB" => 2,
        "m" | "M" | "MiB" => 2 << 10,
        "g" | "G" | "GiB" => 2 << 20,
        "t" | "T" | "TiB" => 2 << 30,
        _ => return Err(bad()),
    };
    if number.is_empty() {
        return Err(bad());
    }
    // Too many digits for 64 bits is too large, too.
    let sectors = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|s| *s < SECTORS_MAX);
    sectors.map(Sectors).ok_or_else(|| SizeError::TooLarge(text.to_owned()))
}

/// `--size`, which also takes `max`: the default, in a word.
pub fn parse_component(text: &str) -> Result<Option<Sectors>, SizeError> {
    if text == "max" { Ok(None) } else { parse_size(text).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_mdadms() {
        assert_eq!(parse_size("64"), Ok(Sectors(128)));
        assert_eq!(parse_size("64K"), Ok(Sectors(128)));
        assert_eq!(parse_size("3M"), Ok(Sectors(6144)));
        assert_eq!(parse_size("2G"), Ok(Sectors(4 << 20)));
        assert_eq!(parse_size("1T"), Ok(Sectors(2 << 30)));
        assert_eq!(parse_size("7s"), Ok(Sectors(7)));
        assert_eq!(parse_component("max"), Ok(None));
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("64M"), Ok(64 << 20));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "K", "-1", "1.5G", "64KB ", "0x10", "64 K", "1e9", "９"] {
            assert!(matches!(parse_size(text), Err(SizeError::NotASize(_))), "{text:?}");
        }
        for text in ["99999999999999999999", "18446744073709551615", "99999999999T"] {
            assert!(matches!(parse_size(text), Err(SizeError::TooLarge(_))), "{text:?}");
        }
    }
}
