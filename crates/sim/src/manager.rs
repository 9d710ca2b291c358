//! The other half of the operator: settings that are changed while the array runs. The bitmap comes and goes, writes are suspended for a
//! while, the array rests until the next write.

use raidus_engine::ArrayConfig;
use raidus_engine::control::{BitmapAddition, Command};
use raidus_format::bitmap::{BitmapSuper, NewBitmap, uuid_in_bitmap};
use raidus_units::{Level, MemberId, Nanos, Sector, Sectors};

use crate::create;
use crate::rng::Rng;
use crate::world::{RoundPlan, World};

/// Percent of the rounds with an operator in which settings are changed, and of his deeds that come with such a change.
const ROUNDS: u64 = 40;
const DEEDS: u64 = 50;

/// The choices of a round, if it has any.
pub(crate) fn draw(config: &ArrayConfig, plan: &RoundPlan) -> Option<Rng> {
    let uuid = config.members.first()?.superblock.array().uuid;
    let seed = uuid.0.iter().fold(plan.first_request, |seed, byte| seed.rotate_left(7) ^ u64::from(*byte));
    let mut rng = Rng::new(seed);
    (plan.operator_percent > 0 && rng.percent(ROUNDS)).then_some(rng)
}

impl World<'_> {
    /// Changes a setting, if it can be changed now.
    pub(crate) fn manage(&mut self) -> Result<(), String> {
        let Some(mut rng) = self.manager.take() else { return Ok(()) };
        let command = if rng.percent(DEEDS) { self.draw_command(&mut rng)? } else { None };
        self.manager = Some(rng);
        let Some(command) = command else { return Ok(()) };
        self.ground.trace.note(self.now, || format!("operator: {command:?}"));
        let result = self.machines.command(self.now, command);
        self.ground.trace.note(self.now, || format!("operator: {result:?}"));
        self.turn(0)
    }

    fn draw_command(&mut self, rng: &mut Rng) -> Result<Option<Command>, String> {
        let status = self.machines.status();
        Ok(Some(match rng.below(10) {
            0..5 if status.bitmap.is_some() => Command::RemoveBitmap,
            0..5 if self.scenario.level.is_redundant() => {
                let (chunk, superblock) = (4096 << rng.below(5), &self.superblock);
                let array = superblock.array();
                let geometry = self.scenario.geometry().ok_or("the scenario has no geometry")?;
                let is_raid10 = self.scenario.level == Level::Raid10;
                let covers = if is_raid10 { geometry.array_sectors() } else { geometry.component_sectors() };
                let new = NewBitmap {
                    uuid: uuid_in_bitmap(array.metadata, superblock.host_order(), array.uuid),
                    events: 0,
                    sync_size: covers,
                    chunk,
                    daemon_sleep: 5,
                    write_behind: 0,
                };
                let superblock = BitmapSuper::create(&new).map_err(|e| e.to_string())?;
                let offset = create::bitmap_offset(&self.scenario);
                Command::AddBitmap(Box::new(BitmapAddition { superblock, offset }))
            }
            5 => Command::SetReadAuto,
            6 if self.resume_at.is_none() => {
                let lo = Sector(rng.below(512));
                self.resume_at = Some(self.moment + rng.range(1, 400));
                Command::SetSuspended { lo: Some(lo), hi: Some(lo + Sectors(512)), all: Some(rng.percent(20)) }
            }
            7 => Command::SetSafeModeDelay(rng.percent(70).then(|| Nanos::from_millis(rng.range(1, 20_000)))),
            8 => Command::SetWriteMostly(MemberId(rng.index(status.map.members.len()) as u16), rng.percent(50)),
            _ => return Ok(None),
        }))
    }

    /// Lets suspended requests go on.
    pub(crate) fn resume(&mut self) -> Result<(), String> {
        self.resume_at = None;
        self.ground.trace.note(self.now, || "operator: resume".to_owned());
        let command = Command::SetSuspended { lo: Some(Sector::ZERO), hi: Some(Sector::ZERO), all: Some(false) };
        self.machines.command(self.now, command).map_err(|e| e.to_string())?;
        self.turn(0)
    }
}
