//! Lets the benchmarks compare with Intel's ISA-L where it is installed. The library itself never uses it.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(isal)");
    println!("cargo::rerun-if-changed=build.rs");
    let known = Command::new("pkg-config").args(["--exists", "libisal"]).status().is_ok_and(|status| status.success());
    let usual = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let native = std::env::var("HOST") == std::env::var("TARGET");
    if native && (known || usual.iter().any(|dir| Path::new(dir).join("libisal.so").exists())) {
        println!("cargo::rustc-cfg=isal");
    }
}
