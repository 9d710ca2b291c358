//! The choice of instruction set.

use core::fmt;
use std::sync::OnceLock;

use crate::simd::{Kernels, scalar};

/// A set of kernels that this processor can run.
///
/// There is no way to get one that it cannot run, so holding a `Backend` is the proof its methods rely on.
#[derive(Clone, Copy)]
pub struct Backend {
    kernels: &'static Kernels,
    cold: bool,
}

impl Backend {
    /// The names of all backends of this architecture, whether or not this processor has them; slowest first.
    #[cfg(target_arch = "x86_64")]
    pub const NAMES: &[&str] = &["scalar", "ssse3", "avx2", "avx2-gfni", "avx512", "avx512-gfni"];
    /// The names of all backends of this architecture, whether or not this processor has them; slowest first.
    #[cfg(target_arch = "aarch64")]
    pub const NAMES: &[&str] = &["scalar", "neon"];
    /// The names of all backends of this architecture, whether or not this processor has them; slowest first.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub const NAMES: &[&str] = &["scalar"];

    /// The best backend for this processor, found once and remembered.
    ///
    /// AVX2 goes before AVX-512 unless there is GFNI: parity of blocks from memory is bound by memory, and on several
    /// processors wide registers lower the clock for no gain.
    pub fn detect() -> Self {
        static BEST: OnceLock<Backend> = OnceLock::new();
        *BEST.get_or_init(|| PREFERENCE.iter().find_map(|name| Self::named(name)).unwrap_or(Self::of(&scalar::KERNELS)))
    }

    /// The backend of that name; none if there is no such backend or the processor lacks its instructions.
    pub fn named(name: &str) -> Option<Self> {
        supported(name).map(Self::of)
    }

    const fn of(kernels: &'static Kernels) -> Self {
        Self { kernels, cold: false }
    }

    /// The same, for blocks that are in no cache and parity that nobody reads soon: a rebuild, for one. New parity is then stored
    /// past the caches; after passes on raw blocks the caller calls [`fence`](Self::fence). Without this, only passes do that which
    /// are too large for caches anyway.
    #[must_use]
    pub const fn cold(self) -> Self {
        Self { cold: true, ..self }
    }

    /// The backends that this processor can run, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::NAMES.iter().filter_map(|name| Self::named(name))
    }

    /// Its name, one of [`Self::NAMES`].
    pub fn name(self) -> &'static str {
        self.kernels.name
    }

    /// Orders all that [cold](Self::cold) passes have stored before what this thread stores next: to be called before anybody else is
    /// told of it.
    pub fn fence(self) {
        // SAFETY: the processor has the instructions of a backend that was handed out.
        unsafe { (self.kernels.fence)() }
    }

    pub(crate) fn kernels(self) -> &'static Kernels {
        self.kernels
    }

    pub(crate) fn fence_if_cold(self) {
        if self.cold {
            self.fence();
        }
    }

    pub(crate) fn is_cold(self) -> bool {
        self.cold
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({})", self.name())
    }
}

const PREFERENCE: &[&str] = &["avx512-gfni", "avx2-gfni", "avx2", "avx512", "ssse3", "neon", "scalar"];

#[cfg(target_arch = "x86_64")]
fn supported(name: &str) -> Option<&'static Kernels> {
    use crate::simd::x86;
    use std::arch::is_x86_feature_detected as has;

    let avx512 = || has!("avx512f") && has!("avx512bw");
    match name {
        "scalar" => Some(&scalar::KERNELS),
        "ssse3" => has!("ssse3").then_some(&x86::ssse3::KERNELS),
        "avx2" => has!("avx2").then_some(&x86::avx2::KERNELS),
        "avx2-gfni" => (has!("avx2") && has!("gfni")).then_some(&x86::avx2_gfni::KERNELS),
        "avx512" => avx512().then_some(&x86::avx512::KERNELS),
        "avx512-gfni" => (avx512() && has!("gfni")).then_some(&x86::avx512_gfni::KERNELS),
        _ => None,
    }
}

#[cfg(target_arch = "aarch64")]
fn supported(name: &str) -> Option<&'static Kernels> {
    match name {
        "scalar" => Some(&scalar::KERNELS),
        "neon" => std::arch::is_aarch64_feature_detected!("neon").then_some(&crate::simd::neon::KERNELS),
        _ => None,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn supported(name: &str) -> Option<&'static Kernels> {
    (name == "scalar").then_some(&scalar::KERNELS)
}
