//! The kernel's judgement on arrays that raidus wrote: it assembles them, sees the same content, and finds no mismatch.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::{Guest, Outcome, by_boots, in_parallel};

/// An array to be judged.
#[derive(Clone, Debug)]
pub struct Exhibit {
    /// For messages.
    pub name: String,
    /// Its members' images.
    pub images: Vec<PathBuf>,
    /// What `sha256sum` of the array has to say.
    pub sum: String,
    /// Whether every superblock has to say clean.
    pub clean: bool,
    /// Shell commands run on `$md` (its devices are `${disks[@]}`, the last of them `$last`) after the judgement, while the kernel has the array; what it contains is summed again afterwards.
    pub then: String,
    /// Extra options for `mdadm --assemble`.
    pub assemble: String,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The exhibit.
    pub name: String,
    /// Digest after the commands in [`Exhibit::then`].
    pub sum_after: String,
    /// Slots without an in-sync member when it was assembled.
    pub degraded: String,
    /// What the kernel set about at once: `idle` if all was in order.
    pub sync_action: String,
}

/// Lets the real kernel judge all of them, as many in one boot as it has disks for, and as many boots at a time as there are processors.
/// Fails with everything it objected to.
pub fn judge(exhibits: &[Exhibit]) -> Result<Vec<Judgement>> {
    let batches = by_boots(exhibits.iter().collect(), |e: &&Exhibit| e.images.len());
    let mut judgements = Vec::new();
    let mut objections = Vec::new();
    for verdict in in_parallel(&batches, |_, batch| judge_batch(batch)).into_iter().collect::<Result<Vec<_>>>()? {
        verdict.into_iter().for_each(|v| match v {
            Ok(judgement) => judgements.push(judgement),
            Err(objection) => objections.push(objection),
        });
    }
    if !objections.is_empty() {
        bail!("the kernel objects to {} of {} arrays:\n{}", objections.len(), exhibits.len(), objections.join("\n"));
    }
    Ok(judgements)
}

/// A judgement or an objection on each exhibit of a batch.
fn judge_batch(batch: &[&Exhibit]) -> Result<Vec<Result<Judgement, String>>> {
    let images: Vec<PathBuf> = batch.iter().flat_map(|e| e.images.clone()).collect();
    let mut script = String::new();
    let mut disk = 0;
    for (n, exhibit) in batch.iter().enumerate() {
        let disks: Vec<String> = (disk..disk + exhibit.images.len()).map(|d| format!("/dev/disk{d}")).collect();
        disk += exhibit.images.len();
        script += &judge_one(n, exhibit, &disks.join(" "));
    }
    let outcome = Guest::new(&images).run(&script)?.expect_success()?;
    let judged = batch.iter().enumerate().map(|(n, exhibit)| {
        let section = section(&outcome.output, n);
        let judged = look_at(&outcome, n, exhibit, section).with_context(|| exhibit.name.clone());
        judged.map_err(|e| format!("{e:#}\n{section}"))
    });
    Ok(judged.collect())
}

fn look_at(outcome: &Outcome, n: usize, exhibit: &Exhibit, section: &str) -> Result<Judgement> {
    let report = |key: &str| outcome.report(&format!("md{n}.{key}"));
    let examined = section.split_once(EXAMINED).context("its superblocks were not looked at")?.0;
    ensure!(report("assembled")? == "yes", "it was not assembled");
    ensure!(report("sum")? == exhibit.sum, "it contains something else");
    ensure!(report("mismatch_cnt")? == "0", "mismatch_cnt is {}", report("mismatch_cnt")?);
    ensure!(examined.contains("Checksum : "), "its superblocks were not looked at");
    ensure!(!examined.contains("expected"), "a superblock's checksum is wrong");
    ensure!(!exhibit.clean || !examined.contains("State : active"), "a superblock says dirty");
    // Linear and raid0 have no such thing.
    let state = |key| report(key).unwrap_or_default().to_owned();
    Ok(Judgement {
        name: exhibit.name.clone(),
        sum_after: report("sum_after")?.to_owned(),
        degraded: state("degraded"),
        sync_action: state("sync_action"),
    })
}

/// Ends what mdadm says of the superblocks.
const EXAMINED: &str = "-- examined";

fn judge_one(n: usize, exhibit: &Exhibit, disks: &str) -> String {
    let Exhibit { assemble, then, sum, .. } = exhibit;
    let last = disks.rsplit(' ').next().unwrap_or(disks);
    // Without further commands the array stays what it was.
    let sum_after = match then.as_str() {
        "" => format!("report md{n}.sum_after {sum}"),
        _ => format!("{then}\n  report_sum md{n}.sum_after /dev/md{n}"),
    };
    format!(
        r#"
echo "== md{n}"
md=md{n}
disks=({disks})
last={last}
mdadm --examine {disks}
echo "{EXAMINED}"
if mdadm --assemble /dev/md{n} --run {assemble} {disks}; then
  report md{n}.assembled yes
else
  report md{n}.assembled no
fi
if [ -e /sys/block/md{n}/md ]; then
  report_file md{n}.degraded /sys/block/md{n}/md/degraded
  report_file md{n}.sync_action /sys/block/md{n}/md/sync_action
  settle md{n}
  report_sum md{n}.sum /dev/md{n}
  check md{n}
  {sum_after}
  mdadm --stop /dev/md{n}
fi
"#
    )
}

/// The part of a batch's output that is about one array.
fn section(output: &str, n: usize) -> &str {
    let from = output.find(&format!("== md{n}\n")).unwrap_or(0);
    let rest = &output[from..];
    let to = rest.find(&format!("== md{}\n", n + 1)).unwrap_or(rest.len());
    &rest[..to]
}
