//! Project tasks: ci, tidy, interop, sim, bench.
fn main() {}
