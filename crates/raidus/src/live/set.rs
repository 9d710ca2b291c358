//! Setting md's attributes, by its words and rules.

use raidus_engine::Tunables;
use raidus_engine::control::{Command, CommandError, SyncRequest};
use raidus_units::{Nanos, Sector, Sectors};

use super::feed::What;
use super::grow::Grow;
use super::members::{Action, Join, Named};
use super::{Live, Refusal};
use crate::host::now;

/// The attributes of the array that can be set; and those of a member, in its directory.
const SETTABLE: [&str; 12] = [
    "array_state",
    "bitmap/location",
    "fail_last_dev",
    "max_read_errors",
    "safe_mode_delay",
    "suspend_hi",
    "suspend_lo",
    "sync_action",
    "sync_max",
    "sync_min",
    "sync_speed_max",
    "sync_speed_min",
];
const SETTABLE_OF_MEMBER: [&str; 3] = ["state", "errors", "bad_blocks"];

/// Whether an attribute can be set at all.
pub fn is_settable(name: &str) -> bool {
    let own = name.strip_prefix("dev-").and_then(|rest| rest.rsplit_once('/'));
    own.map_or(SETTABLE.contains(&name), |(_, own)| SETTABLE_OF_MEMBER.contains(&own))
}

/// An attribute and what somebody wants it to be.
struct Wish<'a> {
    name: &'a str,
    value: &'a str,
}

impl Wish<'_> {
    fn bad(&self, rule: &str) -> Refusal {
        let (attribute, value) = (self.name.to_owned(), self.value.to_owned());
        Refusal::BadValue { attribute, value, rule: rule.to_owned() }
    }

    fn number<N: std::str::FromStr>(&self, what: &str) -> Result<N, Refusal> {
        self.value.parse().map_err(|_| self.bad(&format!("a number {what} is needed")))
    }
}

impl Live {
    /// Sets an attribute. Returns when it is so.
    pub fn set(&self, name: &str, value: &str) -> Result<(), Refusal> {
        let wish = Wish { name, value: value.trim() };
        if let Some((device, own)) = name.strip_prefix("dev-").and_then(|rest| rest.rsplit_once('/')) {
            return self.set_of_member(&wish, device, own);
        }
        let redundant = self.is_redundant();
        let command = match name {
            "array_state" => return self.set_array_state(&wish),
            "bitmap/location" if redundant => return self.set_bitmap_location(&wish),
            "sync_action" if redundant => {
                let request =
                    parse_sync(wish.value).ok_or_else(|| wish.bad("check, repair, idle and frozen are possible"));
                return self.sync(request?);
            }
            "safe_mode_delay" => Command::SetSafeModeDelay(parse_delay(&wish)?),
            "suspend_lo" => self.suspension(Some(wish.number("of sectors")?), None),
            "suspend_hi" => self.suspension(None, Some(wish.number("of sectors")?)),
            "sync_speed_min" | "sync_speed_max" if redundant => speed(&wish)?,
            "sync_min" | "sync_max" if redundant => self.range(&wish)?,
            "max_read_errors" if redundant => Command::SetMaxReadErrors(wish.number("of blocks")?),
            "fail_last_dev" if redundant => Command::SetFailLast(match wish.value {
                "0" => false,
                "1" => true,
                _ => return Err(wish.bad("0 and 1 are possible")),
            }),
            _ if self.status().is_ok_and(|status| self.attribute(name, &status).is_some()) => {
                return Err(Refusal::ReadOnlyAttribute(name.to_owned()));
            }
            _ => return Err(Refusal::NoAttribute(name.to_owned())),
        };
        self.array.command(command)?;
        self.until_settled()?;
        self.tell_set(&wish);
        Ok(())
    }

    fn tell_set(&self, wish: &Wish<'_>) {
        let (attribute, value) = (wish.name.to_owned(), wish.value.to_owned());
        self.feed.push(What::AttributeSet { attribute, value }, now().secs);
    }

    fn suspension(&self, lo: Option<u64>, hi: Option<u64>) -> Command {
        Command::SetSuspended { lo: lo.map(Sector), hi: hi.map(Sector), all: None }
    }

    /// md's words, and `suspended`, which it knows and does not take.
    fn set_array_state(&self, wish: &Wish<'_>) -> Result<(), Refusal> {
        let suspend = |all| Command::SetSuspended { lo: None, hi: None, all: Some(all) };
        let command = match wish.value {
            "suspended" => suspend(true),
            "readonly" => Command::SetReadOnly(true),
            "active" | "clean" | "read-auto" | "auto-read" if self.portrait.assembled.read_only => {
                return Err(Refusal::StartedReadOnly);
            }
            "active" | "clean" => Command::SetReadOnly(false),
            "read-auto" | "auto-read" => Command::SetReadAuto,
            "clear" | "inactive" => return Err(wish.bad("`raidus stop` ends an array")),
            _ => return Err(wish.bad("readonly, read-auto, clean, active and suspended are possible")),
        };
        if self.status()?.suspended.all && wish.value != "suspended" {
            // What waits meets the new state.
            self.array.command(command)?;
            self.array.command(suspend(false))?;
        } else {
            self.array.command(command)?;
        }
        self.until_settled()?;
        Ok(())
    }

    fn set_bitmap_location(&self, wish: &Wish<'_>) -> Result<(), Refusal> {
        let wanted = match wish.value {
            "none" => Grow::NoBitmap,
            "internal" => Grow::Bitmap { chunk: None },
            place if place.starts_with(['+', '-']) => Grow::Bitmap { chunk: None },
            _ => return Err(wish.bad("none and internal are possible")),
        };
        self.grow(wanted).map(|_| ())
    }

    /// What is asked of syncs.
    pub fn sync(&self, request: SyncRequest) -> Result<(), Refusal> {
        if !self.is_redundant() {
            return Err(CommandError::NoRedundancy.into());
        }
        self.array.command(Command::Sync(request))?;
        let value = match request {
            SyncRequest::Freeze => "frozen",
            SyncRequest::Idle => "idle",
            // Its beginning is told.
            SyncRequest::Check | SyncRequest::Repair => return Ok(()),
        };
        self.tell_set(&Wish { name: "sync_action", value });
        Ok(())
    }

    fn range(&self, wish: &Wish<'_>) -> Result<Command, Refusal> {
        let sectors = match wish.value {
            "max" if wish.name == "sync_max" => None,
            _ => Some(Sector(wish.number("of sectors")?)),
        };
        let chunk = self.portrait.assembled.geometry.chunk().0.max(8);
        if sectors.is_some_and(|sectors| !sectors.0.is_multiple_of(chunk)) {
            return Err(wish.bad(&format!("a multiple of {chunk} sectors is needed")));
        }
        let sync = self.status()?.sync;
        let (min, max) = match wish.name {
            "sync_min" => (sectors.unwrap_or(Sector::ZERO), sync.max),
            _ => (sync.min, sectors),
        };
        if max.is_some_and(|max| max < min) {
            return Err(wish.bad("sync_min may not be more than sync_max"));
        }
        Ok(Command::SetSyncRange { min, max })
    }

    fn set_of_member(&self, wish: &Wish<'_>, device: &str, own: &str) -> Result<(), Refusal> {
        let named = Named { word: device.into(), absolute: device.into() };
        if own == "state" {
            return self.set_member_state(wish, &named);
        }
        let status = self.status()?;
        let member = self.resolve(&status, &named)?.id;
        let command = match own {
            "errors" => Command::SetReadErrors(member, wish.number("of sectors")?),
            "bad_blocks" => {
                let words: Vec<&str> = wish.value.split_whitespace().collect();
                let numbers = words.iter().map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>();
                let Some([start, len]) = numbers.as_deref() else {
                    return Err(wish.bad("a sector of the device and a number of sectors are needed"));
                };
                Command::AddBadBlocks { member, start: Sector(*start), len: Sectors(*len) }
            }
            _ if self.attribute(wish.name, &status).is_some() => {
                return Err(Refusal::ReadOnlyAttribute(wish.name.to_owned()));
            }
            _ => return Err(Refusal::NoAttribute(wish.name.to_owned())),
        };
        self.array.command(command).map_err(|source| Refusal::Member { device: device.to_owned(), source })?;
        self.until_settled()?;
        if own == "errors" {
            self.tell_set(wish);
        }
        Ok(())
    }

    /// What is written to `dev-NAME/state`.
    fn set_member_state(&self, wish: &Wish<'_>, named: &Named) -> Result<(), Refusal> {
        match wish.value {
            "faulty" => self.act(Action::Fail, named).map(|_| ()),
            "remove" => self.act(Action::Remove, named).map(|_| ()),
            "want_replacement" => self.replace(named, None).map(|_| ()),
            "re-add" => self.take_back(named),
            "writemostly" | "-writemostly" => {
                let member = self.resolve(&self.status()?, named)?.id;
                self.array.command(Command::SetWriteMostly(member, wish.value == "writemostly"))?;
                self.until_settled().map(|_| ())
            }
            // It is so, or else only a rebuild can make it so.
            "in_sync" => match self.attribute(wish.name, &self.status()?) {
                Some(state) if state.split(',').any(|word| word == "in_sync") => Ok(()),
                _ => Err(wish.bad("it is not in sync, and becomes so by being rebuilt")),
            },
            _ => Err(wish
                .bad("faulty, remove, re-add, want_replacement, writemostly, -writemostly and in_sync are possible")),
        }
    }

    /// A failed member leaves and comes back, if the bitmap tells what it missed.
    fn take_back(&self, named: &Named) -> Result<(), Refusal> {
        let path = self.resolve(&self.status()?, named)?.place.absolute;
        self.act(Action::Remove, named)?;
        self.add(&Named { word: path.clone(), absolute: path }, Join::ReAdd).map(|_| ())
    }
}

/// md's words for what can be asked of syncs.
pub fn parse_sync(word: &str) -> Option<SyncRequest> {
    Some(match word {
        "check" => SyncRequest::Check,
        "repair" => SyncRequest::Repair,
        "idle" => SyncRequest::Idle,
        "frozen" | "freeze" => SyncRequest::Freeze,
        _ => return None,
    })
}

fn speed(wish: &Wish<'_>) -> Result<Command, Refusal> {
    let (defaults, is_min) = (Tunables::default(), wish.name == "sync_speed_min");
    let speed = match wish.value {
        "system" if is_min => defaults.sync_speed_min,
        "system" => defaults.sync_speed_max,
        _ => wish.number("of KiB per second, or system,")?,
    };
    let (min, max) = if is_min { (Some(speed), None) } else { (None, Some(speed)) };
    Ok(Command::SetSyncSpeed { min, max })
}

/// Seconds with up to three decimals; 0 for never.
fn parse_delay(wish: &Wish<'_>) -> Result<Option<Nanos>, Refusal> {
    let bad = || wish.bad("seconds are needed, such as 0.2 or 30; 0 for never");
    let (whole, part) = wish.value.split_once('.').unwrap_or((wish.value, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 3 {
        return Err(bad());
    }
    let seconds: u64 = whole.parse().ok().filter(|seconds| *seconds <= 86_400).ok_or_else(bad)?;
    let millis: u64 = format!("{part:0<3}").parse().map_err(|_| bad())?;
    let all = seconds * 1000 + millis;
    Ok((all > 0).then(|| Nanos::from_millis(all)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_seconds_with_decimals() {
        let delay =
            |value| parse_delay(&Wish { name: "safe_mode_delay", value }).ok().map(|d| d.map(|d| d.0 / 1_000_000));
        assert_eq!(delay("0.2"), Some(Some(200)));
        assert_eq!(delay("0.210"), Some(Some(210)));
        assert_eq!(delay("5"), Some(Some(5000)));
        assert_eq!(delay("0"), Some(None));
        for bad in ["", ".", "1.", ".5", "1.2345", "-1", "a", "1e3", "99999999"] {
            assert_eq!(delay(bad), None, "{bad}");
        }
    }
}
