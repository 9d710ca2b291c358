//! Absolute speed of each operation beside the rival's, by criterion: `cargo bench -p raidus-parity --bench parity`.

// `criterion_group!` makes a public function that it gives no way to document.
#![allow(missing_docs)]

mod common;

use common::{Op, RIVAL, Work};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use raidus_parity::Backend;

fn operations(criterion: &mut Criterion) {
    let ours = Backend::detect();
    for op in Op::ALL {
        for len in [4 << 10, 64 << 10, 1 << 20] {
            let mut group = criterion.benchmark_group(format!("{op:?}/{} KiB", len >> 10));
            for members in [4, 6, 8, 16] {
                let mut row = Work::new(op, members, len);
                group.throughput(Throughput::Bytes((op.sources(members) * len) as u64));
                let id = BenchmarkId::new(ours.name(), members);
                group.bench_function(id, |bencher| bencher.iter(|| row.ours(ours)));
                group.bench_function(BenchmarkId::new(RIVAL, members), |bencher| bencher.iter(|| row.rivals()));
                // Both did the same work on the same row.
                let theirs = row.results();
                row.ours(ours);
                assert!(row.results() == theirs, "results differ");
            }
            group.finish();
        }
    }
}

criterion_group!(benches, operations);
criterion_main!(benches);
