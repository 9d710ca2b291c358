//! Rules on source text: crate attributes, unfinished work, file sizes, words that have no place in the project.

use super::{Findings, Text};

/// Crates that need `unsafe`: vector instructions, the rings, the kernel's interfaces.
const UNSAFE: &[&str] = &["crates/parity/", "crates/runtime/"];

/// Lines of code (tests not counted) from which a file deserves a look, and from which it is too long.
const LINES_LOOK: usize = 700;
const LINES_MAX: usize = 900;

/// Unfinished work. Written in halves, so that this file does not find itself.
const UNFINISHED: &[&str] = &[concat!("to", "do!("), concat!("unimple", "mented!("), concat!("#[ig", "nore")];

/// Paths of the places where the project happened to be written.
const PLACES: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/tmp/hel", "per"), concat!("/ho", "me/"), concat!("/ro", "ot/")];

pub fn check(texts: &[Text], findings: &mut Findings) {
    for file in texts {
        check_places(file, findings);
        if file.path.ends_with(".rs") {
            check_unfinished(file, findings);
            check_size(file, findings);
            check_attributes(file, findings);
        }
    }
}

fn check_places(file: &Text, findings: &mut Findings) {
    for (line, text) in (1..).zip(file.text.lines()) {
        for place in PLACES {
            let is_path = |(at, _): (usize, &str)| {
                !text[..at].ends_with(|c: char| c.is_alphanumeric() || ['_', '-', '.', '}', '/'].contains(&c))
            };
            if text.match_indices(place).any(is_path) {
                findings.error(format!("{}:{line}: names a place outside the project: {place}", file.path));
            }
        }
    }
}

fn check_unfinished(file: &Text, findings: &mut Findings) {
    for (line, text) in (1..).zip(file.text.lines()) {
        for word in UNFINISHED.iter().filter(|word| text.contains(*word)) {
            findings.error(format!("{}:{line}: unfinished: {word}", file.path));
        }
    }
}

fn check_size(file: &Text, findings: &mut Findings) {
    if file.path.contains("/tests/") || file.path.ends_with("tests.rs") {
        return;
    }
    let lines = code_lines(&file.text);
    let what = format!("{}: {lines} lines; a file is one idea", file.path);
    if lines > LINES_MAX {
        findings.error(what);
    } else if lines > LINES_LOOK {
        findings.warn(what);
    }
}

/// Lines before the unit tests, which stand at the end.
fn code_lines(text: &str) -> usize {
    let tests =
        |(here, next): &(&str, &str)| *here == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{');
    let pairs = text.lines().zip(text.lines().skip(1));
    pairs.enumerate().find(|(_, pair)| tests(pair)).map_or(text.lines().count(), |(line, _)| line)
}

fn check_attributes(file: &Text, findings: &mut Findings) {
    let library = file.path.ends_with("/src/lib.rs");
    if !file.path.starts_with("crates/") || !library && !file.path.ends_with("/src/main.rs") {
        return;
    }
    // Those that may be unsafe are under the workspace's lints on how to be.
    let may_be_unsafe = UNSAFE.iter().any(|c| file.path.starts_with(c));
    let need = [(!may_be_unsafe, "#![forbid(unsafe_code)]"), (library, "#![deny(missing_docs)]")];
    for (_, attribute) in need.into_iter().filter(|(needed, attribute)| *needed && !file.text.contains(attribute)) {
        findings.error(format!("{}: lacks {attribute}", file.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(path: &str, text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        check(&[Text { path: path.to_owned(), text: text.to_owned() }], &mut findings);
        findings.errors
    }

    #[test]
    fn attributes_of_crate_roots() {
        let both = "#![forbid(unsafe_code)]\n#![deny(missing_docs)]\n";
        assert!(errors("crates/x/src/lib.rs", both).is_empty());
        assert_eq!(errors("crates/x/src/lib.rs", "#![deny(missing_docs)]\n").len(), 1);
        assert_eq!(errors("crates/x/src/main.rs", "").len(), 1);
        assert!(errors("crates/parity/src/lib.rs", "#![deny(missing_docs)]\n").is_empty());
        assert!(errors("crates/x/src/other.rs", "").is_empty());
    }

    #[test]
    fn unfinished_work_and_foreign_places() {
        assert_eq!(errors("a.rs", &format!("fn f() {{ {})", UNFINISHED[0])).len(), 1);
        assert_eq!(errors("a.md", &format!("see {}notes", PLACES[0])).len(), 1);
        assert!(errors("a.md", "a network/cable and frame.work/x").is_empty());
    }

    #[test]
    fn tests_do_not_count_as_length() {
        let code = "x\n".repeat(LINES_LOOK);
        let tests = format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n");
        assert_eq!(code_lines(&tests), LINES_LOOK);
        assert_eq!(errors("a.rs", &"x\n".repeat(LINES_MAX + 1)).len(), 1);
    }
}
