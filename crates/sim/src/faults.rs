//! The fault atlas: what goes wrong on which member, drawn so that the array must survive it.
//!
//! Members are *doomed* only as long as the level has all data without them; the others stay perfect. So the oracle can be
//! strict: whatever the doomed members do, every request succeeds. Only a *lossy* scenario dooms more.

use raidus_engine::{MemberError, MemberOp};
use raidus_units::Nanos;

use crate::rng::Rng;

/// The faults of one member in one round. Counts are of the member's I/Os of the kind, from the start of the round.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultPlan {
    /// The device vanishes after this many I/Os.
    gone_after: Option<u64>,
    /// Data writes that fail: first, count.
    writes: Option<(u64, u64)>,
    /// Metadata writes that fail: first, count.
    metadata: Option<(u64, u64)>,
    /// Flushes that fail: first, count.
    flushes: Option<(u64, u64)>,
    /// Reads that fail: first, count. (Latent errors are the disk's own.)
    reads: Option<(u64, u64)>,
    /// Longest time an I/O takes.
    pub(crate) slow: Option<Nanos>,
    /// Latent read errors: share of the member in percent.
    pub(crate) latent_percent: u64,
    seen: Seen,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    all: u64,
    writes: u64,
    metadata: u64,
    flushes: u64,
    reads: u64,
}

impl FaultPlan {
    /// A member that may do anything.
    pub(crate) fn doomed(rng: &mut Rng) -> FaultPlan {
        let mut plan = FaultPlan::default();
        let when = |rng: &mut Rng, most: u64| (rng.below(most), rng.pick(&[1, 1, 3, u64::MAX]));
        match rng.below(7) {
            0 => plan.gone_after = Some(rng.below(200)),
            1 => plan.writes = Some(when(rng, 100)),
            2 => plan.metadata = Some(when(rng, 12)),
            3 => plan.flushes = Some(when(rng, 6)),
            4 => plan.reads = Some(when(rng, 60)),
            5 => plan.latent_percent = rng.pick(&[1, 10, 50]),
            _ => {
                plan.gone_after = rng.percent(50).then(|| rng.below(300));
                plan.writes = rng.percent(50).then(|| when(rng, 100));
                plan.latent_percent = rng.pick(&[0, 5]);
            }
        }
        plan.slow = FaultPlan::draw_slow(rng);
        plan
    }

    /// A member that vanishes after so many I/Os.
    pub(crate) fn vanishing(after: u64) -> FaultPlan {
        FaultPlan { gone_after: Some(after), ..FaultPlan::default() }
    }

    /// A member that does everything it is asked, perhaps late.
    pub(crate) fn sound(rng: &mut Rng) -> FaultPlan {
        FaultPlan { slow: FaultPlan::draw_slow(rng), ..FaultPlan::default() }
    }

    fn draw_slow(rng: &mut Rng) -> Option<Nanos> {
        rng.percent(10).then(|| Nanos::from_millis(rng.pick(&[5, 100, 3000])))
    }

    /// Whether this I/O fails, now that it is its turn.
    pub(crate) fn verdict(&mut self, op: &MemberOp) -> Result<(), MemberError> {
        self.seen.all += 1;
        if self.gone_after.is_some_and(|n| self.seen.all > n) {
            return Err(MemberError::Gone);
        }
        let (count, plan) = match op {
            MemberOp::Read { .. } => (&mut self.seen.reads, self.reads),
            MemberOp::Write { .. } | MemberOp::WriteZeroes { .. } => (&mut self.seen.writes, self.writes),
            MemberOp::WriteMeta { .. } | MemberOp::WriteLog { .. } => (&mut self.seen.metadata, self.metadata),
            MemberOp::Flush => (&mut self.seen.flushes, self.flushes),
        };
        let number = *count;
        *count += 1;
        match plan {
            Some((first, n)) if number >= first && number - first < n => Err(MemberError::Io),
            _ => Ok(()),
        }
    }
}
