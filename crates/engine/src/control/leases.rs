//! Who holds which region, and who waits for one.
//!
//! A region is held by any number of shards; each holds it once. Wants are kept in arrival order until they are granted or
//! refused; their number is bounded by what the shards have under way.

use std::collections::BTreeMap;

use raidus_units::Nanos;

use super::Control;
use super::life::Life;
use super::pause::Pause;
use crate::io::RequestError;
use crate::msg::{Message, Region, ShardId};

#[derive(Debug, Default)]
pub(super) struct Leases {
    held: BTreeMap<Region, Vec<ShardId>>,
    wants: Vec<(ShardId, Region)>,
    /// Grows with every grant: tells whether writes may have happened since some moment.
    grants: u64,
}

impl Leases {
    pub fn want(&mut self, shard: ShardId, regions: Vec<Region>) {
        self.wants.extend(regions.into_iter().map(|region| (shard, region)));
    }

    /// Takes leases back; the regions nobody holds any more.
    pub fn give_back(&mut self, shard: ShardId, regions: Vec<Region>) -> Vec<Region> {
        let mut idle = Vec::new();
        for region in regions {
            let Some(holders) = self.held.get_mut(&region) else { continue };
            holders.retain(|holder| *holder != shard);
            if holders.is_empty() {
                self.held.remove(&region);
                idle.push(region);
            }
        }
        idle
    }

    /// Drops what shards wait for: they forget it, too. The regions.
    pub fn forget(&mut self) -> Vec<Region> {
        std::mem::take(&mut self.wants).into_iter().map(|(_, region)| region).collect()
    }

    /// Everything a shard holds.
    pub fn of(&self, shard: ShardId) -> Vec<Region> {
        self.held.iter().filter(|(_, holders)| holders.contains(&shard)).map(|(region, _)| *region).collect()
    }

    /// Moves the wants for which `ready` says so to the leases held. Returns them by shard.
    pub fn grant(&mut self, mut ready: impl FnMut(Region) -> bool) -> BTreeMap<ShardId, Vec<Region>> {
        let mut granted: BTreeMap<ShardId, Vec<Region>> = BTreeMap::new();
        let mut waiting = Vec::new();
        for (shard, region) in self.wants.drain(..) {
            if !ready(region) {
                waiting.push((shard, region));
                continue;
            }
            let holders = self.held.entry(region).or_default();
            if !holders.contains(&shard) {
                holders.push(shard);
            }
            self.grants += 1;
            granted.entry(shard).or_default().push(region);
        }
        self.wants = waiting;
        granted
    }

    /// Drops the wants for which `hopeless` says so. Returns them by shard.
    pub fn refuse(&mut self, mut hopeless: impl FnMut(Region) -> bool) -> BTreeMap<ShardId, Vec<Region>> {
        let mut refused: BTreeMap<ShardId, Vec<Region>> = BTreeMap::new();
        self.wants.retain(|(shard, region)| {
            let keep = !hopeless(*region);
            if !keep {
                refused.entry(*shard).or_default().push(*region);
            }
            keep
        });
        refused
    }

    /// The regions waited for.
    pub fn wanted(&self) -> impl Iterator<Item = Region> + '_ {
        self.wants.iter().map(|(_, region)| *region)
    }

    /// Whether somebody holds the region's lease.
    pub fn is_held(&self, region: Region) -> bool {
        self.held.contains_key(&region)
    }

    /// Whether nobody holds a lease.
    pub fn none_held(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether nobody waits for one.
    pub fn none_wanted(&self) -> bool {
        self.wants.is_empty()
    }

    pub fn grants(&self) -> u64 {
        self.grants
    }
}

impl Control {
    pub(super) fn on_returned(&mut self, now: Nanos, shard: ShardId, regions: Vec<Region>) {
        let idle = self.leases.give_back(shard, regions);
        let keep = self.degraded();
        if let Some(bitmap) = &mut self.bitmap {
            idle.into_iter().for_each(|region| bitmap.on_idle(region, now, keep));
        }
    }

    /// Refuses what cannot be had, grants what is ready, and sets the bits of the rest.
    pub(super) fn settle_wants(&mut self) {
        self.refuse_wants();
        if self.pause.as_ref().is_some_and(Pause::holds) {
            return;
        }
        self.grant_wants();
        if let Some(bitmap) = &mut self.bitmap {
            self.leases.wanted().for_each(|region| bitmap.set(region));
        }
    }

    /// Whether somebody waits for a lease that he may get.
    pub(super) fn wanted(&self) -> bool {
        !self.leases.none_wanted() && !self.pause.as_ref().is_some_and(Pause::holds)
    }

    fn refuse_wants(&mut self) {
        let error = if self.broken {
            Some(RequestError::Io)
        } else if self.map.read_only {
            Some(RequestError::ReadOnly)
        } else if matches!(self.life, Life::Closing | Life::Stopped) {
            Some(RequestError::Stopped)
        } else {
            None
        };
        let bitmap = self.bitmap.as_ref();
        let outside = |region| bitmap.is_some_and(|b| !b.contains(region));
        let refused = self.leases.refuse(|region| error.is_some() || outside(region));
        for (shard, regions) in refused {
            self.out.send(shard, Message::LeaseRefused { regions, error: error.unwrap_or(RequestError::Range) });
        }
    }

    fn grant_wants(&mut self) {
        if !self.marked && self.redundant() {
            return;
        }
        // A member that failed while a round was written has its dirty mark, but not the bits that came after: until it is on record
        // that it failed, its bitmap may be the one that is read after a crash.
        if self.failures.to_record() && self.redundant() {
            return;
        }
        let mut bitmap = self.bitmap.as_mut();
        let granted = self.leases.grant(|region| {
            let Some(bitmap) = &mut bitmap else { return true };
            let ready = bitmap.is_durable(region);
            if ready {
                bitmap.hold(region);
            }
            ready
        });
        for (shard, regions) in granted {
            self.data_clean = false;
            self.out.send(shard, Message::LeaseGranted(regions));
        }
    }
}
