//! The power goes at a write to a member, at every one of a short life: the kernel assembles what is left, resyncs it, finds it
//! consistent, and reads what was acknowledged and flushed; the rest is old or new, sector by sector.
//!
//! The simulator plays the lives, on disks whose caches are lost, kept, or lost in parts.

use anyhow::{Context, Result, bail, ensure};
use interop::{Guest, Outcome, PARTS_MAX, in_parallel, partition, scratch};
use raidus_sim::Unflushed;
use raidus_sim::cut::{Aftermath, Case, Trouble, cases};
use raidus_units::Level;

/// Every how many-th cut of a life is judged, unless all are asked for. The first differs from life to life. Another number:
/// `RAIDUS_CUTS_SAMPLE=4`.
const SAMPLE: u64 = 19;
/// Arrays in one boot.
const BATCH: usize = 40;

fn full() -> bool {
    std::env::var_os("RAIDUS_INTEROP_FULL").is_some()
}

fn sample() -> u64 {
    let wanted = std::env::var("RAIDUS_CUTS_SAMPLE").ok().and_then(|n| n.parse().ok());
    wanted.filter(|n| *n > 0).unwrap_or(SAMPLE)
}

/// Only cuts whose description contains this are judged, and all superblocks shown before: `RAIDUS_CUTS_ONLY='raid6 of 5, 1.0'`.
fn only() -> Option<String> {
    std::env::var("RAIDUS_CUTS_ONLY").ok()
}

/// A cut to be judged.
#[derive(Clone, Copy)]
struct Moment {
    case: Case,
    at: u64,
    unflushed: Unflushed,
}

impl Moment {
    fn describe(&self) -> String {
        format!("{}, cut at write {}, unflushed {:?}", self.case, self.at, self.unflushed)
    }
}

/// What became of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Read,
    Refused,
}

#[test]
fn a_cut_at_every_write() {
    let moments = moments();
    let per_boot = BATCH.min(PARTS_MAX / 6);
    let batches: Vec<&[Moment]> = moments.chunks(per_boot).collect();
    let judged = in_parallel(&batches, |_, batch| judge(batch));
    let fates = judged.into_iter().collect::<Result<Vec<_>>>().unwrap_or_else(|e| panic!("{e:#}")).concat();
    let wrong: Vec<String> = fates.iter().filter_map(|f| f.as_ref().err()).map(|e| format!("{e:#}")).collect();
    assert!(wrong.is_empty(), "{} of {} arrays:\n{}", wrong.len(), fates.len(), wrong.join("\n"));
    let refused = fates.iter().filter(|f| matches!(f, Ok(Fate::Refused))).count();
    println!("{} arrays, {refused} of them rightly refused", fates.len());
    assert!(only().is_some() || refused * 3 < fates.len(), "{refused} of {} arrays were refused", fates.len());
}

fn moments() -> Vec<Moment> {
    let mut moments = Vec::new();
    for (n, case) in (0..).zip(cases()) {
        let life = case.live().unwrap_or_else(|e| panic!("{case}: {e}"));
        let all = full() || only().is_some();
        let step = if all { 1 } else { sample() };
        for at in (n % step..life.writes).step_by(step as usize) {
            let fates = [Unflushed::Lost, Unflushed::Kept, Unflushed::Torn];
            let each = fates.iter().enumerate().filter(|(k, _)| all || *k as u64 == (at / step + n) % 3);
            moments.extend(each.map(|(_, unflushed)| Moment { case, at, unflushed: *unflushed }));
        }
    }
    if let Some(only) = only() {
        moments.retain(|moment| moment.describe().contains(&only));
    }
    moments
}

/// A verdict on each of a batch; an error if there is none.
fn judge(batch: &[Moment]) -> Result<Vec<Result<Fate, String>>> {
    let left = |m: &Moment| m.case.cut(m.at, m.unflushed).map_err(|e| anyhow::anyhow!("{}: {e}", m.describe()));
    let left = batch.iter().map(left).collect::<Result<Vec<Aftermath>>>()?;
    let dir = scratch();
    let contents: Vec<&[u8]> = left.iter().flat_map(|a| &a.disks).map(Vec::as_slice).collect();
    let (images, names) = partition(dir.path(), &contents)?;
    let share = dir.path().join("content");
    std::fs::create_dir(&share)?;
    let mut names = names.iter();
    let script: String = (0..)
        .zip(batch.iter().zip(&left))
        .map(|(n, (moment, aftermath))| {
            let members: Vec<&str> = names.by_ref().take(aftermath.disks.len()).map(String::as_str).collect();
            assemble_and_read(n, &members.join(" "), loses_marks(&moment.case))
        })
        .collect();
    let guest = Guest::new(&images).option("--share").option(share.to_str().context("a path that is not UTF-8")?);
    let outcome = guest.run(&script)?.expect_success()?;
    if only().is_some() {
        println!("{}", outcome.output);
    }
    let verdicts = batch.iter().zip(&left).enumerate().map(|(n, (moment, aftermath))| {
        let content = std::fs::read(share.join(n.to_string())).ok();
        let verdict = verdict(&outcome, n, moment, aftermath, content.as_deref());
        verdict.map_err(|e| format!("{}: {e:#}\n{}", moment.describe(), section(&outcome.output, n)))
    });
    Ok(verdicts.collect())
}

/// Whether the kernel forgets what the bitmap marks. If mirrors are dirty and one copy is rebuilt, which comes first, the rebuild uses the marks
/// up; the resync that follows finds nothing to do, and copies that were in sync before stay different (seen with 6.1). Only a repair
/// makes them equal.
fn loses_marks(case: &Case) -> bool {
    matches!(case.level, Level::Raid1 | Level::Raid10) && case.bitmap && case.trouble == Trouble::Rebuilds
}

fn assemble_and_read(n: usize, members: &str, repair: bool) -> String {
    let repair =
        if repair { format!("echo repair > /sys/block/md{n}/md/sync_action; settle md{n}") } else { String::new() };
    let examine = if only().is_some() { format!("mdadm --examine {members}") } else { String::new() };
    format!(
        r#"
echo "== {n}"
{examine}
if mdadm --assemble /dev/md{n} --run {members}; then
  settle md{n}
  read -r degraded < /sys/block/md{n}/md/degraded
  # What is to be synced may not have begun, and a rebuild may follow.
  if [ $degraded != 0 ]; then nap; settle md{n}; nap; settle md{n}; fi
  # A resync follows a rebuild, after a moment in which the array is idle.
  tries=0
  while read -r start < /sys/block/md{n}/md/resync_start && [ $start != none ] && [ $tries -lt 100 ]; do
    nap; settle md{n}; tries=$((tries + 1))
  done
  cat /dev/md{n} > $SHARE/{n}
  {repair}
  check md{n}
  report_file {n}.degraded /sys/block/md{n}/md/degraded
  report_file {n}.action /sys/block/md{n}/md/last_sync_action
fi
mdadm --stop /dev/md{n} || :  # it may have been refused
"#
    )
}

fn verdict(
    outcome: &Outcome,
    n: usize,
    moment: &Moment,
    aftermath: &Aftermath,
    content: Option<&[u8]>,
) -> Result<Fate> {
    let Some(content) = content else {
        ensure!(aftermath.may_be_refused, "the kernel does not start it");
        return Ok(Fate::Refused);
    };
    if let Err(e) = aftermath.check(content) {
        bail!("{e}");
    }
    let found = outcome.report(&format!("md{n}.mismatch_cnt"))?;
    ensure!(found == "0", "mismatch_cnt is {found}");
    let action = outcome.report(&format!("{n}.action"))?;
    ensure!(action == "check", "the last action was {action}");
    let degraded: u16 = outcome.report(&format!("{n}.degraded"))?.parse()?;
    let bearable = u16::from(moment.case.trouble != Trouble::None);
    ensure!(degraded <= bearable, "{degraded} members are missing");
    Ok(Fate::Read)
}

/// The part of the output that is about one array.
fn section(output: &str, n: usize) -> &str {
    let from = output.find(&format!("== {n}\n")).unwrap_or(0);
    let rest = &output[from..];
    &rest[..rest.find(&format!("== {}\n", n + 1)).unwrap_or(rest.len())]
}
