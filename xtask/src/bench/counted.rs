//! What a request costs in I/Os and other things that can be counted.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Raidus, number};

/// A load of a fixed number of requests, and what it must cost.
struct Gate {
    words: &'static str,
    bounds: &'static [(&'static str, Bound)],
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    Exactly(f64),
    AtMost(f64),
}

use Bound::{AtMost, Exactly};

const READS: &str = "/counters/member_reads_per_request";
const WRITES: &str = "/counters/member_writes_per_request";
const PREREADS: &str = "/counters/prereads_per_write";
const COPIES: &str = "/counters/copied_bytes_per_byte";
const MESSAGES: &str = "/counters/messages_per_request";
const SYSCALLS: &str = "/counters/syscalls_per_request";
const BYTES: &str = "/counters/member_bytes_per_byte";

/// A stream whose requests end inside stripes. Old data and parity are read there, since nothing waits for the rest of a stripe yet.
const SEQUENTIAL: &[(&str, Bound)] = &[(BYTES, AtMost(1.9)), (COPIES, Exactly(0.0))];

const GATES: &[Gate] = &[
    Gate {
        words: "--level 0 --members 4*null",
        bounds: &[(READS, Exactly(1.0)), (WRITES, Exactly(0.0)), (COPIES, Exactly(0.0)), (SYSCALLS, AtMost(0.01))],
    },
    Gate {
        words: "--level 1 --members 2*null --reads 0 -b internal",
        bounds: &[
            (READS, Exactly(0.0)),
            (WRITES, Exactly(2.0)),
            (COPIES, Exactly(0.0)),
            (SYSCALLS, AtMost(0.01)),
            ("/counters/bitmap_pages", AtMost(4.0)),
            ("/counters/superblock_rounds", AtMost(2.0)),
        ],
    },
    Gate {
        words: "--level 10 --members 4*null --reads 0",
        bounds: &[(READS, Exactly(0.0)), (WRITES, Exactly(2.0)), (COPIES, Exactly(0.0))],
    },
    Gate {
        words: "--level 5 --members 5*null",
        bounds: &[(READS, Exactly(1.0)), (WRITES, Exactly(0.0)), (COPIES, Exactly(0.0)), (SYSCALLS, AtMost(0.01))],
    },
    Gate {
        words: "--level 5 --members 5*null --reads 0",
        bounds: &[(READS, Exactly(2.0)), (WRITES, Exactly(2.0)), (PREREADS, Exactly(2.0)), (COPIES, Exactly(0.0))],
    },
    Gate {
        words: "--level 6 --members 6*null --reads 0",
        bounds: &[(READS, Exactly(3.0)), (WRITES, Exactly(3.0)), (PREREADS, Exactly(3.0)), (COPIES, Exactly(0.0))],
    },
    Gate {
        words: "--level 5 --members 5*null --chunk 16K --block 64K --pattern sequential --reads 0",
        bounds: &[(READS, Exactly(0.0)), (WRITES, Exactly(5.0)), (BYTES, Exactly(1.25)), (COPIES, Exactly(0.0))],
    },
    Gate {
        words: "--level 5 --members 6*null --chunk 64K --block 1M --pattern sequential --reads 0 --depth 32",
        bounds: SEQUENTIAL,
    },
    Gate {
        words: "--level 6 --members 8*null --chunk 64K --block 1M --pattern sequential --reads 0 --depth 32",
        bounds: SEQUENTIAL,
    },
    Gate {
        words: "--level 5 --members 5*null --jobs 2 --threads 2",
        bounds: &[(MESSAGES, Exactly(0.0)), (READS, Exactly(1.0))],
    },
    Gate {
        words: "--level 10 --members 4*null --jobs 2 --threads 2 --reads 0",
        bounds: &[(MESSAGES, AtMost(0.1)), (WRITES, Exactly(2.0))],
    },
    Gate {
        words: "--level 5 --members 5*null --jobs 2 --threads 2 --reads 0",
        bounds: &[(MESSAGES, AtMost(1.1)), (WRITES, Exactly(2.0)), (READS, Exactly(2.0))],
    },
    Gate {
        words: "--level 10 --members 4*model:latency=50us,flush=1ms,size=256M --reads 0 --jobs 128 --depth 1 --flush-every 1 --length 20",
        // 2560 flushes are asked for. With one round running and one waiting, each of the 128 clients' turns takes two rounds, or less.
        bounds: &[("/counters/flush_rounds", AtMost(160.0)), (COPIES, Exactly(0.0))],
    },
    Gate {
        words: "--level 6 --members 8*model:size=4TiB,kept=front -b internal --reads 0",
        bounds: &[("/resident_bytes", AtMost(268_435_456.0))],
    },
];

/// Runs all loads; whether all bounds hold.
pub fn check(raidus: &Raidus) -> Result<bool> {
    let mut passed = true;
    for gate in GATES {
        let length = if gate.words.contains("--length") { "" } else { " --length 4000" };
        let report = raidus.bench(&format!("{}{length} --warmup 400 --no-bare", gate.words))?;
        println!("raidus bench {}", gate.words);
        for (pointer, bound) in gate.bounds {
            passed &= judge(&report, pointer, *bound).with_context(|| gate.words.to_owned())?;
        }
    }
    Ok(passed)
}

fn judge(report: &Value, pointer: &str, bound: Bound) -> Result<bool> {
    let is = number(report, pointer)?;
    let (holds, wanted) = match bound {
        Exactly(wanted) => (is == wanted, format!("exactly {wanted}")),
        AtMost(most) => (is <= most, format!("at most {most}")),
    };
    println!("  {} {:40} {is:>14.4}  ({wanted})", if holds { "ok  " } else { "FAIL" }, pointer.trim_start_matches('/'));
    Ok(holds)
}
