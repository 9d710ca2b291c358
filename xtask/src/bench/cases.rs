//! The pairs that are measured, and what is to be reached.

use anyhow::Result;

use super::{Raidus, number};

/// A pair.
pub struct Case {
    pub name: &'static str,
    /// `raidus bench` with these words.
    words: &'static str,
    of: Of,
    /// What is to be reached.
    pub target: Target,
}

/// Which ratio.
enum Of {
    /// A figure of the array ÷ the same of its bare members.
    Bare(&'static str),
    /// Requests per second ÷ those with other words.
    Other(&'static str),
    /// A figure that is a ratio already.
    Figure(&'static str),
}

/// What a ratio should be.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Target::AtLeast(least) => ratio >= least,
            Target::AtMost(most) => ratio <= most,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::AtLeast(least) => write!(f, "≥ {least:.2}"),
            Target::AtMost(most) => write!(f, "≤ {most:.2}"),
        }
    }
}

const IOS: Of = Of::Bare("member_ios_per_second");

const fn at_least(name: &'static str, words: &'static str, of: Of, least: f64) -> Case {
    Case { name, words, of, target: Target::AtLeast(least) }
}

/// All pairs.
pub const CASES: &[Case] = &[
    at_least("raid1(2) random write, memory", "--level 1 --members 2*memory --reads 0", IOS, 0.90),
    at_least(
        "raid1(2) random write with bitmap, memory",
        "--level 1 --members 2*memory --reads 0 -b internal",
        IOS,
        0.85,
    ),
    at_least("raid10(4) random write, memory", "--level 10 --members 4*memory --reads 0", IOS, 0.90),
    at_least(
        "raid10(4) random write with bitmap, memory",
        "--level 10 --members 4*memory --reads 0 -b internal",
        IOS,
        0.85,
    ),
    at_least("raid0(4) random read, memory", "--level 0 --members 4*memory", IOS, 0.90),
    at_least("raid10(4) random read, memory", "--level 10 --members 4*memory", IOS, 0.90),
    at_least("raid5(5) random read, memory", "--level 5 --members 5*memory", IOS, 0.90),
    at_least("raid6(6) random read, memory", "--level 6 --members 6*memory", IOS, 0.90),
    at_least(
        "raid5(5) random write, modelled 80 us",
        "--level 5 --members 5*model:latency=80us,kept=front --reads 0",
        IOS,
        0.90,
    ),
    at_least(
        "raid6(6) random write, modelled 80 us",
        "--level 6 --members 6*model:latency=80us,kept=front --reads 0",
        IOS,
        0.90,
    ),
    at_least(
        "raid6(8) sequential write 1 MiB, modelled 2 GiB/s",
        "--level 6 --members 8*model:latency=80us,bandwidth=2GiB/s,kept=front --pattern sequential --block 1M --reads 0",
        Of::Bare("member_bytes_per_second"),
        0.90,
    ),
    at_least(
        "raid5(5) random read, two jobs: two threads ÷ one",
        "--level 5 --members 5*null --jobs 2 --threads 2 --no-bare",
        Of::Other("--level 5 --members 5*null --jobs 2 --threads 1 --no-bare"),
        1.80,
    ),
    at_least(
        "raid5(5) random write, two jobs: two threads ÷ one",
        "--level 5 --members 5*null --reads 0 --jobs 2 --threads 2 --no-bare",
        Of::Other("--level 5 --members 5*null --reads 0 --jobs 2 --threads 1 --no-bare"),
        1.80,
    ),
    at_least(
        "raid10(4) random write, two jobs: two threads ÷ one",
        "--level 10 --members 4*null --reads 0 --jobs 2 --threads 2 --no-bare",
        Of::Other("--level 10 --members 4*null --reads 0 --jobs 2 --threads 1 --no-bare"),
        1.80,
    ),
    at_least(
        "raid5(5) random write, one job: two threads ÷ one",
        "--level 5 --members 5*null --reads 0 --jobs 1 --threads 2 --no-bare",
        Of::Other("--level 5 --members 5*null --reads 0 --jobs 1 --threads 1 --no-bare"),
        1.00,
    ),
    Case {
        name: "raid5(5) random mix beside a recovery: p99 ÷ without",
        words: "--level 5 --members 5*model:latency=80us,bandwidth=2GiB/s,flush=1ms,size=64G,kept=front --reads 70 --no-bare --rounds 1 --beside recovery",
        of: Of::Figure("/beside/p99_ratio"),
        target: Target::AtMost(2.0),
    },
    Case {
        name: "raid10(4) random mix beside a check: p99 ÷ without",
        words: "--level 10 --members 4*model:latency=80us,bandwidth=2GiB/s,flush=1ms,size=64G,kept=front --reads 70 --no-bare --rounds 1 --beside check",
        of: Of::Figure("/beside/p99_ratio"),
        target: Target::AtMost(2.0),
    },
];

impl Case {
    /// Both sides, one after the other; their ratio.
    pub fn measure(&self, raidus: &Raidus, length: &str) -> Result<f64> {
        let words = |words: &str| format!("{words} --length {length} --warmup 200ms");
        let report = raidus.bench(&words(self.words))?;
        let rate = "/result/requests_per_second";
        match self.of {
            Of::Bare(figure) => number(&report, &format!("/ratio/{figure}")),
            Of::Figure(pointer) => number(&report, pointer),
            Of::Other(other) => Ok(number(&report, rate)? / number(&raidus.bench(&words(other))?, rate)?),
        }
    }
}
