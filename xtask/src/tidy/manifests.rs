//! Every dependency says in one line why it is there.

use super::{Findings, Text};

pub fn check(texts: &[Text], findings: &mut Findings) {
    for manifest in texts.iter().filter(|t| t.path.ends_with("Cargo.toml")) {
        for (line, name) in unexplained(&manifest.text) {
            findings.error(format!("{}:{line}: no reason given for the dependency {name}", manifest.path));
        }
    }
}

/// Dependencies without a comment above them. Those taken over from the workspace are explained there; the project's own
/// crates need no excuse.
fn unexplained(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_dependencies = false;
    let mut explained = false;
    for (line, text) in (1..).zip(manifest.lines().map(str::trim)) {
        if text.starts_with('[') {
            in_dependencies = text.trim_matches(['[', ']']).ends_with("dependencies");
        } else if in_dependencies && text.contains('=') && !text.starts_with('#') {
            let name = text.split(['=', '.', ' ']).next().unwrap_or_default();
            let inherited = text.contains("workspace = true");
            if !explained && !inherited && !name.starts_with("raidus") && !text.contains("# ") {
                found.push((line, name));
            }
        }
        explained = text.starts_with('#');
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_unexplained() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\nraidus-units.workspace = true\n# Why.\na = \"1\"\nb = \"2\"\n\
                        [dev-dependencies]\nc.workspace = true\nd = { version = \"1\" }\n";
        assert_eq!(unexplained(manifest), [(7, "b"), (10, "d")]);
    }
}
