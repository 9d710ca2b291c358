//! Which crate may import which. See the list of layers in the architecture document.

use anyhow::{Context, Result};
use toml::{Table, Value};

use super::{Findings, Text};

/// Crates by layer: a crate imports from layers above its own line only, never from its neighbours.
const LAYERS: &[&[&str]] = &[
    &["raidus-units"],
    &["raidus-format", "raidus-layout", "raidus-parity"],
    &["raidus-assembly"],
    &["raidus-engine"],
    &["raidus-runtime", "raidus-sim", "raidus-text"],
    &["raidus-nbd", "raidus-fuse"],
    &["raidus"],
    &["xtask", "interop"],
];

/// Test fixtures: anybody's tests may use them, nobody's product code.
const FIXTURES: &[&str] = &["raidus-golden"];

pub fn check(texts: &[Text], findings: &mut Findings) -> Result<()> {
    for manifest in texts.iter().filter(|t| t.path.ends_with("Cargo.toml")) {
        let table: Table = manifest.text.parse().with_context(|| manifest.path.clone())?;
        let Some(name) = table.get("package").and_then(|p| p.get("name")).and_then(Value::as_str) else { continue };
        if name.contains("fuzz") || FIXTURES.contains(&name) {
            continue;
        }
        let Some(own) = layer(name) else {
            findings.error(format!("{}: crate {name} has no place in the layers", manifest.path));
            continue;
        };
        for dependency in internal(&table, "dependencies") {
            if layer(dependency).is_none_or(|theirs| theirs >= own) {
                findings.error(format!("{}: {name} must not import {dependency}", manifest.path));
            }
        }
        for dependency in internal(&table, "dev-dependencies") {
            // Tests may look upwards, but the two drivers stay apart even there.
            let drivers = [name, dependency].iter().all(|n| ["raidus-runtime", "raidus-sim"].contains(n));
            if drivers || layer(dependency).is_none() && !FIXTURES.contains(&dependency) {
                findings.error(format!("{}: tests of {name} must not import {dependency}", manifest.path));
            }
        }
    }
    Ok(())
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|crates| crates.contains(&name))
}

/// The project's own crates among the dependencies.
fn internal<'a>(manifest: &'a Table, section: &str) -> Vec<&'a str> {
    let own = |name: &&str| name.starts_with("raidus") || ["xtask", "interop"].contains(name);
    let dependencies = manifest.get(section).and_then(Value::as_table);
    dependencies.map_or_else(Vec::new, |d| d.keys().map(String::as_str).filter(own).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(name: &str, section: &str, dependency: &str) -> usize {
        let text = format!("[package]\nname = \"{name}\"\n[{section}]\n{dependency}.workspace = true\n");
        let mut findings = Findings::default();
        check(&[Text { path: "crates/x/Cargo.toml".to_owned(), text }], &mut findings).unwrap();
        findings.errors.len()
    }

    #[test]
    fn imports_go_down_only() {
        assert_eq!(errors("raidus-engine", "dependencies", "raidus-layout"), 0);
        assert_eq!(errors("raidus-layout", "dependencies", "raidus-engine"), 1);
        assert_eq!(errors("raidus-layout", "dependencies", "raidus-format"), 1);
        assert_eq!(errors("raidus-sim", "dependencies", "raidus-runtime"), 1);
        assert_eq!(errors("raidus-runtime", "dev-dependencies", "raidus-sim"), 1);
        assert_eq!(errors("raidus-layout", "dev-dependencies", "raidus-golden"), 0);
        assert_eq!(errors("raidus-layout", "dependencies", "raidus-golden"), 1);
        assert_eq!(errors("raidus-news", "dependencies", "raidus-units"), 1);
    }
}
