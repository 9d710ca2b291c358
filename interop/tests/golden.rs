//! Every array the real kernel made, through the whole of raidus: opened, read in full, read with members left out.

use std::path::{Path, PathBuf};

use interop::{Raidus, in_parallel, scratch, sum};
use raidus_golden::{Case, cases};

/// What raidus does with an array.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    /// It is opened, and contains what the manifest says.
    Content,
    /// It is refused, and the message says why.
    Refused(&'static str),
}

fn expected(case: &Case) -> Expected {
    let m = &case.manifest;
    if m.reshape_position.is_some() || m.scenario.starts_with("reshape") && m.after_crash.is_some() {
        return Expected::Refused("reshape");
    }
    if case.name.starts_with("dirty-degraded") {
        return Expected::Refused("stopped while being written");
    }
    Expected::Content
}

fn images(case: &Case, dir: &Path) -> Vec<PathBuf> {
    case.write_images(dir).expect("room for images")
}

/// The disks that are part of the array.
fn in_array(case: &Case, all: &[PathBuf]) -> Vec<PathBuf> {
    all.iter().zip(&case.manifest.members).filter(|(_, m)| m.is_in_array()).map(|(p, _)| p.clone()).collect()
}

#[test]
fn every_array_is_read_or_refused_for_the_right_reason() {
    let verdicts = in_parallel(cases(), |_, case| {
        let dir = scratch();
        let images = in_array(case, &images(case, dir.path()));
        let opened = Raidus::look(&images);
        match (expected(case), opened) {
            (Expected::Content, Ok(array)) => has_content(case, &array).map(|()| true),
            (Expected::Refused(word), Err(e)) if format!("{e:#}").contains(word) => Ok(false),
            (expected, Ok(_)) => Err(format!("opened, but {expected:?}")),
            (expected, Err(e)) => Err(format!("{e:#}; but {expected:?}")),
        }
        .map_err(|e| format!("{}: {e}", case.name))
    });
    let wrong: Vec<&str> = verdicts.iter().filter_map(|v| v.as_ref().err()).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} arrays:\n{}", wrong.len(), wrong.join("\n"));
    let count = |opened| verdicts.iter().filter(|v| **v == Ok(opened)).count();
    let (read, refused) = (count(true), count(false));
    println!("{read} arrays read, {refused} refused");
    assert!(read > 250 && refused > 20, "{read} read, {refused} refused");
}

fn has_content(case: &Case, array: &Raidus) -> Result<(), String> {
    let m = &case.manifest;
    let content = &array.content;
    if content.len() as u64 != m.size_bytes {
        return Err(format!("{} bytes, the kernel had {}", content.len(), m.size_bytes));
    }
    if let Some(pattern) = &m.pattern {
        let known = |at: u64| pattern.iter().any(|p| (p.0..p.1).contains(&at));
        if let Some((at, _)) = array.unreadable.iter().find(|(from, to)| known(*from) || known(to - 1)) {
            return Err(format!("byte {at} cannot be read, the kernel could"));
        }
        raidus_golden::pattern::check(pattern, 0, content).map_err(|e| e.to_string())?;
    }
    match &m.kernel_read_sha256 {
        // A killed machine's page cache read more than its disks had.
        Some(kernel) if m.after_crash.is_none() && *kernel != sum(content) => {
            Err("another digest than the kernel's".into())
        }
        _ => Ok(()),
    }
}

/// Whole arrays of redundant levels with every one, and for raid6 every two, of their members left out.
#[test]
fn arrays_are_read_with_members_left_out() {
    let whole = |c: &&Case| c.manifest.scenario == "plain" && c.manifest.degraded == Some(0);
    let chosen: Vec<&Case> = cases().iter().filter(whole).filter(|c| expected(c) == Expected::Content).collect();
    let verdicts = in_parallel(&chosen, |_, case| {
        let dir = scratch();
        let images = in_array(case, &images(case, dir.path()));
        // A missing journal is another matter.
        let slots: Vec<usize> =
            (0..images.len()).filter(|i| case.manifest.members[*i].slot_number().is_some()).collect();
        let bearable = match case.manifest.level.as_str() {
            "raid6" => 2,
            "raid1" => case.manifest.raid_disks as usize - 1,
            _ => 1,
        };
        let without = |out: Vec<usize>| {
            let rest: Vec<PathBuf> =
                images.iter().enumerate().filter(|(i, _)| !out.contains(i)).map(|(_, p)| p.clone()).collect();
            let read = Raidus::look(&rest).map_err(|e| format!("{e:#}")).and_then(|a| has_content(case, &a));
            read.map_err(|e| format!("{} without {out:?}: {e}", case.name))
        };
        left_out(&slots, bearable).into_iter().map(without).collect::<Vec<_>>()
    })
    .concat();
    let wrong: Vec<&str> = verdicts.iter().filter_map(|v| v.as_ref().err()).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} arrays:\n{}", wrong.len(), wrong.join("\n"));
    println!("{} degraded arrays read", verdicts.len());
    assert!(verdicts.len() > 500, "only {}", verdicts.len());
}

/// Every one, and at most every pair, of the slots.
fn left_out(slots: &[usize], bearable: usize) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    for (n, a) in slots.iter().enumerate() {
        if bearable >= 1 {
            all.push(vec![*a]);
        }
        if bearable >= 2 {
            all.extend(slots[n + 1..].iter().map(|b| vec![*a, *b]));
        }
    }
    all
}
