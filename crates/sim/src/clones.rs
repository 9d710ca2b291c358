//! A copy of a member, made some time ago, comes back beside it or in its place.
//!
//! Which of the two has the newest data cannot be told from what stands on them: whoever offers both must be refused, untouched.
//! (0.90 names members by numbers that are given anew; there a copy that is behind is a stale member like others, and only must not be used.)

use raidus_assembly::{Reason, Seat, Standing, Verdict};

use crate::assemble::{decision_on, superblock};
use crate::disk::Disk;
use crate::rng::Rng;

/// The copy of one disk.
#[derive(Debug)]
pub(crate) struct Clones {
    /// A stream of its own: what else happens does not depend on it.
    rng: Rng,
    copy: Option<(usize, Disk)>,
}

impl Clones {
    pub(crate) fn new(rng: Rng) -> Clones {
        Clones { rng, copy: None }
    }

    /// Copies a disk now and then; an older copy is kept now and then, too.
    pub(crate) fn take(&mut self, disks: &[Disk]) {
        if self.copy.is_none() || self.rng.percent(30) {
            let disk = self.rng.index(disks.len());
            self.copy = Some((disk, disks[disk].clone()));
        }
    }

    /// Offers the copy together with these disks, and looks at the decision. Returns whether there was something to decide.
    pub(crate) fn check(&mut self, disks: &[Disk], offered: &[usize]) -> Result<bool, String> {
        let Some((disk, copy)) = &self.copy else { return Ok(false) };
        let (Some(own), Some(old)) = (superblock(&disks[*disk]), superblock(copy)) else { return Ok(false) };
        if !offered.contains(disk) || own.member().device_uuid != old.member().device_uuid {
            return Ok(false);
        }
        let place = self.rng.index(offered.len() + 1);
        let mut all: Vec<(&Disk, usize)> = offered.iter().map(|i| (&disks[*i], *i)).collect();
        all.insert(place, (copy, disks.len()));
        let decision = decision_on(all.into_iter());
        let same_moment = own.events() == old.events();
        let refused = match &decision.verdict {
            Verdict::Refuse(reasons) => reasons.iter().any(|r| matches!(r, Reason::SameMember { .. })),
            Verdict::Start(_) => false,
        };
        // Whatever stands on a spare does not count.
        let holds = matches!(decision.members[place].standing, Standing::In(seat) if seat != Seat::Spare);
        let used = holds && decision.start().is_some();
        if own.version().is_v1() && !refused {
            return Err(format!("disk{disk} and a copy of it (event {}) are not refused", old.events()));
        }
        if used && !same_moment {
            return Err(format!("a copy of disk{disk} of event {} is used beside it", old.events()));
        }
        Ok(true)
    }
}
