//! The kernel's judgement on arrays that raidus wrote: it assembles them, sees the same content, and finds no mismatch.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::Guest;

/// Disks one guest can have.
const DISKS_MAX: usize = 16;

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
    /// Shell commands run on `$md` (its last device is `$last`) after the judgement, while the kernel has the array; what it contains is summed again afterwards.
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

/// Lets the real kernel judge all of them, as many in one boot as it has disks for. Fails with everything it objected to.
pub fn judge(exhibits: &[Exhibit]) -> Result<Vec<Judgement>> {
    let mut judgements = Vec::new();
    let mut objections = Vec::new();
    let mut rest = exhibits;
    while !rest.is_empty() {
        let mut disks = 0;
        let fit = rest.iter().take_while(|e| {
            disks += e.images.len();
            disks <= DISKS_MAX
        });
        let (batch, later) = rest.split_at(fit.count().max(1));
        rest = later;
        judge_batch(batch, &mut judgements, &mut objections)?;
    }
    if !objections.is_empty() {
        bail!("the kernel objects to {} of {} arrays:\n{}", objections.len(), exhibits.len(), objections.join("\n"));
    }
    Ok(judgements)
}

fn judge_batch(batch: &[Exhibit], judgements: &mut Vec<Judgement>, objections: &mut Vec<String>) -> Result<()> {
    let images: Vec<PathBuf> = batch.iter().flat_map(|e| e.images.clone()).collect();
    let mut script = String::new();
    let mut disk = 0;
    for (n, exhibit) in batch.iter().enumerate() {
        let disks: Vec<String> = (disk..disk + exhibit.images.len()).map(|d| format!("/dev/disk{d}")).collect();
        disk += exhibit.images.len();
        script += &judge_one(n, exhibit, &disks.join(" "));
    }
    let outcome = Guest::new(&images).run(&script)?.expect_success()?;
    for (n, exhibit) in batch.iter().enumerate() {
        let report = |key: &str| outcome.report(&format!("md{n}.{key}"));
        let verdict = (|| {
            ensure!(report("assembled")? == "yes", "it was not assembled: {}", report("assembled")?);
            ensure!(report("sum")? == exhibit.sum, "it contains something else");
            ensure!(report("mismatch_cnt")? == "0", "mismatch_cnt is {}", report("mismatch_cnt")?);
            ensure!(report("bad_sums")? == "0", "a superblock's checksum is wrong");
            ensure!(!exhibit.clean || report("active")? == "0", "a superblock says dirty");
            // Linear and raid0 have no such thing.
            let state = |key| report(key).unwrap_or_default().to_owned();
            Ok(Judgement {
                name: exhibit.name.clone(),
                sum_after: report("sum_after")?.to_owned(),
                degraded: state("degraded"),
                sync_action: state("sync_action"),
            })
        })();
        match verdict.with_context(|| exhibit.name.clone()) {
            Ok(judgement) => judgements.push(judgement),
            Err(e) => objections.push(format!("{e:#}\n{}", section(&outcome.output, n))),
        }
    }
    Ok(())
}

fn judge_one(n: usize, exhibit: &Exhibit, disks: &str) -> String {
    let Exhibit { assemble, then, .. } = exhibit;
    let last = disks.rsplit(' ').next().unwrap_or(disks);
    format!(
        r#"
echo "== md{n}"
md=md{n}
last={last}
mdadm --examine {disks} > /tmp/examine 2>&1
report md{n}.bad_sums "$(grep -c 'expected' /tmp/examine)"
report md{n}.active "$(grep -cE 'State : active' /tmp/examine)"
if out=$(mdadm --assemble /dev/md{n} --run {assemble} {disks} 2>&1); then
  report md{n}.assembled yes
else
  report md{n}.assembled "no: $(echo $out)"
  cat /tmp/examine
fi
echo "$out"; cat /proc/mdstat
if [ -e /sys/block/md{n}/md ]; then
  report md{n}.degraded "$(cat /sys/block/md{n}/md/degraded 2>/dev/null)"
  report md{n}.sync_action "$(cat /sys/block/md{n}/md/sync_action 2>/dev/null)"
  settle md{n}
  report md{n}.sum "$(sum /dev/md{n})"
  check md{n}
  {then}
  report md{n}.sum_after "$(sum /dev/md{n})"
  mdadm --stop /dev/md{n} 2>&1
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
