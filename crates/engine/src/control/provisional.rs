//! The fields of a bitmap superblock that a running array reads and writes.

/// A bitmap superblock's 256 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitmapSuperblock([u8; 256]);

impl BitmapSuperblock {
    /// From its bytes.
    pub fn new(bytes: [u8; 256]) -> BitmapSuperblock {
        BitmapSuperblock(bytes)
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) | u64::from(self.u32_at(at + 4)) << 32
    }

    pub(crate) fn bits(&self) -> u64 {
        (self.u64_at(40) * 512).div_ceil(self.chunk_bytes().max(512))
    }

    pub(crate) fn daemon_sleep(&self) -> u32 {
        self.u32_at(56)
    }

    pub(crate) fn chunk_bytes(&self) -> u64 {
        u64::from(self.u32_at(52))
    }

    pub(crate) fn events_cleared(&self) -> u64 {
        self.u64_at(32)
    }

    pub(crate) fn mark(&mut self, events: u64, cleared: u64) {
        self.0[24..32].copy_from_slice(&events.to_le_bytes());
        self.0[32..40].copy_from_slice(&cleared.to_le_bytes());
        self.0[48] &= !2;
    }

    pub(crate) fn encode(&self) -> [u8; 256] {
        self.0
    }
}
