//! Sizes for people: `(39.00 MiB 40.89 MB)`.

/// Below this the plain figure is easy enough to read.
const PLAIN_BELOW: u64 = 5000 * 1024;
const GIB: u128 = 1 << 30;
const TIB: u128 = 1 << 40;

/// ` (39.00 MiB 40.89 MB)`, with its leading space; empty for small sizes.
pub fn human_size(bytes: u64) -> String {
    match units(bytes) {
        None => String::new(),
        Some(([binary, decimal], letter)) => format!(" ({binary} {letter}iB {decimal} {letter}B)"),
    }
}

/// `39.00MiB` or, `decimal`, `40.89MB`; empty for small sizes.
pub fn human_size_brief(bytes: u64, decimal: bool) -> String {
    match units(bytes) {
        None => String::new(),
        Some(([_, figure], letter)) if decimal => format!("{figure}{letter}B"),
        Some(([figure, _], letter)) => format!("{figure}{letter}iB"),
    }
}

fn units(bytes: u64) -> Option<([String; 2], char)> {
    if bytes < PLAIN_BELOW {
        return None;
    }
    let bytes = u128::from(bytes);
    let (binary, decimal, letter) = match bytes {
        _ if bytes < 2 * GIB => (1 << 20, 1_000_000, 'M'),
        _ if bytes < 2 * TIB => (GIB, 1_000_000_000, 'G'),
        _ => (TIB, 1_000_000_000_000, 'T'),
    };
    Some(([hundredths(bytes, binary), hundredths(bytes, decimal)], letter))
}

fn hundredths(bytes: u128, unit: u128) -> String {
    let n = (bytes * 200 / unit).div_ceil(2);
    format!("{}.{:02}", n / 100, n % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_mdadms() {
        assert_eq!(human_size(39936 * 1024), " (39.00 MiB 40.89 MB)");
        assert_eq!(human_size(4999 * 1024), "");
        assert_eq!(human_size(10 << 40), " (10.00 TiB 11.00 TB)");
        assert_eq!(human_size_brief(79872 * 1024, true), "81.79MB");
        assert_eq!(human_size_brief(79872 * 1024, false), "78.00MiB");
    }
}
