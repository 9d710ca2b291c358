//! How to write part of a stripe, and how to get back what cannot be read. Pure decisions; the shard carries them out.
//!
//! md's rules are followed where they are visible on disk: read-modify-write only when it needs strictly fewer reads than
//! reconstruct-write (`rmw_level` 1), and never where the old parity cannot be trusted.

/// A set of data indices of one stripe (parity arrays have at most 255 slots).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataSet([u64; 4]);

impl DataSet {
    /// Nobody.
    pub const EMPTY: DataSet = DataSet([0; 4]);

    /// Puts `i` in.
    pub fn insert(&mut self, i: u16) {
        self.0[usize::from(i >> 6) & 3] |= 1 << (i & 63);
    }

    /// Whether `i` is in.
    pub fn contains(&self, i: u16) -> bool {
        self.0[usize::from(i >> 6) & 3] & (1 << (i & 63)) != 0
    }

    /// How many there are.
    pub fn len(&self) -> u16 {
        self.0.iter().map(|w| w.count_ones() as u16).sum()
    }

    /// The members of the set in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..4u16).flat_map(|w| {
            let mut bits = self.0[usize::from(w)];
            core::iter::from_fn(move || {
                if bits == 0 {
                    return None;
                }
                let i = bits.trailing_zeros() as u16;
                bits &= bits - 1;
                Some(w * 64 + i)
            })
        })
    }
}

/// What may be done with one block of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Its content is there and may be read.
    pub readable: bool,
    /// A member takes writes there.
    pub writable: bool,
}

impl Access {
    /// No such parity, or no member.
    pub const NONE: Access = Access { readable: false, writable: false };
}

/// A stripe as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeView {
    /// Number of data blocks.
    pub data_disks: u16,
    /// Data blocks that cannot be read.
    pub unreadable: DataSet,
    /// Data blocks that no member takes.
    pub unwritable: DataSet,
    /// XOR parity.
    pub p: Access,
    /// Second parity; `NONE` for levels 4 and 5.
    pub q: Access,
    /// Number of parities of the level.
    pub parities: u16,
    /// Parity is known to match the data.
    pub in_sync: bool,
}

/// How to write data blocks `first .. first + disks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePlan {
    /// No parity to keep: write the data.
    DataOnly,
    /// Read the data blocks that are not written (none for a full stripe), compute parity from all data.
    Reconstruct,
    /// Read the old blocks and the old parity, apply the difference.
    Modify,
    /// Read everything readable, recover the unreadable data, then compute parity from all data.
    Recover,
}

/// More is gone than the level can bear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// Plans a write of the data blocks `first .. first + disks`.
pub fn plan_write(view: &StripeView, first: u16, disks: u16) -> Result<WritePlan, Lost> {
    let missing = view.unwritable.len()
        + u16::from(!view.p.writable && view.parities >= 1)
        + u16::from(!view.q.writable && view.parities >= 2);
    if missing > view.parities {
        return Err(Lost);
    }
    if !view.p.writable && !view.q.writable {
        return Ok(WritePlan::DataOnly);
    }
    let written = |i: u16| (first..first + disks).contains(&i);
    let reconstruct_possible = view.unreadable.iter().all(written);
    let modify_possible = view.in_sync
        && !view.unreadable.iter().any(written)
        && (view.p.readable || !view.p.writable)
        && (view.q.readable || !view.q.writable);
    let reconstruct_reads = view.data_disks - disks;
    let modify_reads = disks + u16::from(view.p.writable) + u16::from(view.q.writable);
    if modify_possible && (!reconstruct_possible || modify_reads < reconstruct_reads) {
        return Ok(WritePlan::Modify);
    }
    if reconstruct_possible {
        return Ok(WritePlan::Reconstruct);
    }
    recovery(view, None)?;
    Ok(WritePlan::Recover)
}

/// Which parities to recover the unreadable data blocks with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nothing is missing.
    Nothing,
    /// One block, from P.
    OneWithP(u16),
    /// One block, from Q.
    OneWithQ(u16),
    /// Two blocks, from both.
    Two(u16, u16),
}

/// How to recover all unreadable data blocks of the stripe, `also` counted as one of them.
pub fn recovery(view: &StripeView, also: Option<u16>) -> Result<Recovery, Lost> {
    let mut gone = view.unreadable;
    if let Some(i) = also {
        gone.insert(i);
    }
    let mut it = gone.iter();
    match (it.next(), it.next(), it.next()) {
        (None, ..) => Ok(Recovery::Nothing),
        (Some(x), None, _) if view.p.readable => Ok(Recovery::OneWithP(x)),
        (Some(x), None, _) if view.q.readable => Ok(Recovery::OneWithQ(x)),
        (Some(x), Some(y), None) if view.p.readable && view.q.readable => Ok(Recovery::Two(x, y)),
        _ => Err(Lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subsets(n: u16) -> impl Iterator<Item = DataSet> {
        (0..1u32 << n).map(move |bits| {
            let mut s = DataSet::EMPTY;
            (0..n).filter(|i| bits >> i & 1 == 1).for_each(|i| s.insert(i));
            s
        })
    }

    const FULL: Access = Access { readable: true, writable: true };

    fn accesses() -> [Access; 3] {
        [Access::NONE, FULL, Access { readable: false, writable: true }]
    }

    /// Every stripe of up to four data blocks, every combination of missing and unreadable blocks, every write: the plan reads
    /// only what is readable, has all it needs, and gives up only when nothing else is left.
    #[test]
    fn exhaustive() {
        let mut plans = 0;
        for dd in 1..=4u16 {
            for parities in 1..=2u16 {
                for unreadable in subsets(dd) {
                    for unwritable in subsets(dd).filter(|w| w.iter().all(|i| unreadable.contains(i))) {
                        for p in accesses() {
                            for q in if parities == 2 { accesses().to_vec() } else { vec![Access::NONE] } {
                                for in_sync in [false, true] {
                                    let view =
                                        StripeView { data_disks: dd, unreadable, unwritable, p, q, parities, in_sync };
                                    plans += check_all_writes(&view);
                                }
                            }
                        }
                    }
                }
            }
        }
        assert!(plans > 10_000, "only {plans} plans were looked at");
    }

    fn check_all_writes(view: &StripeView) -> u32 {
        let mut n = 0;
        for first in 0..view.data_disks {
            for disks in 1..=view.data_disks - first {
                check(view, first, disks);
                n += 1;
            }
        }
        n
    }

    fn check(view: &StripeView, first: u16, disks: u16) {
        let written = |i: u16| i >= first && i < first + disks;
        let parity_kept = view.p.writable || view.q.writable;
        let others_readable = (0..view.data_disks).all(|i| written(i) || !view.unreadable.contains(i));
        match plan_write(view, first, disks) {
            Ok(WritePlan::DataOnly) => assert!(!parity_kept && (view.unwritable.len() == 0 || view.parities == 2)),
            Ok(WritePlan::Reconstruct) => assert!(others_readable && parity_kept),
            Ok(WritePlan::Modify) => {
                assert!(view.in_sync, "old parity was not to be trusted");
                assert!((first..first + disks).all(|i| !view.unreadable.contains(i)));
                assert!(view.p.readable || !view.p.writable);
                assert!(view.q.readable || !view.q.writable);
                let reads = disks + u16::from(view.p.writable) + u16::from(view.q.writable);
                assert!(!others_readable || reads < view.data_disks - disks);
            }
            Ok(WritePlan::Recover) => {
                assert!(!others_readable);
                let readable_parities = u16::from(view.p.readable) + u16::from(view.q.readable);
                assert!(view.unreadable.len() <= readable_parities);
            }
            Err(Lost) => {
                let gone = view.unwritable.len()
                    + u16::from(!view.p.writable)
                    + u16::from(view.parities == 2 && !view.q.writable);
                let readable_parities = u16::from(view.p.readable) + u16::from(view.q.readable);
                assert!(gone > view.parities || view.unreadable.len() > readable_parities);
            }
        }
    }

    #[test]
    fn md_prefers_modify_only_when_it_reads_less() {
        let view = |dd| StripeView {
            data_disks: dd,
            unreadable: DataSet::EMPTY,
            unwritable: DataSet::EMPTY,
            p: FULL,
            q: Access::NONE,
            parities: 1,
            in_sync: true,
        };
        assert_eq!(plan_write(&view(3), 0, 1), Ok(WritePlan::Reconstruct), "two reads either way");
        assert_eq!(plan_write(&view(4), 0, 1), Ok(WritePlan::Modify), "two reads against three");
        assert_eq!(plan_write(&StripeView { in_sync: false, ..view(4) }, 0, 1), Ok(WritePlan::Reconstruct));
        assert_eq!(plan_write(&view(4), 0, 4), Ok(WritePlan::Reconstruct), "a full stripe reads nothing");
    }
}
