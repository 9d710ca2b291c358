//! `cargo xtask tidy`: the architecture and the house rules that no compiler checks.

mod layers;
mod manifests;
mod sources;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// What is wrong, one line each; and what only deserves a look.
#[derive(Debug, Default)]
pub struct Findings {
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Findings {
    fn error(&mut self, what: String) {
        self.errors.push(what);
    }

    fn warn(&mut self, what: String) {
        self.warnings.push(what);
    }
}

/// A file of the project.
#[derive(Debug)]
pub struct Text {
    /// From the project's root, with slashes.
    path: String,
    text: String,
}

/// Checks the whole project.
pub fn run() -> Result<()> {
    let texts = texts(&root()?)?;
    let mut findings = Findings::default();
    layers::check(&texts, &mut findings)?;
    manifests::check(&texts, &mut findings);
    sources::check(&texts, &mut findings);
    for warning in &findings.warnings {
        println!("look: {warning}");
    }
    for error in &findings.errors {
        println!("error: {error}");
    }
    if !findings.errors.is_empty() {
        bail!("tidy: {} errors in {} files", findings.errors.len(), texts.len());
    }
    println!("tidy: {} files in order", texts.len());
    Ok(())
}

fn root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(manifest.parent().context("xtask is not inside the project")?.to_owned())
}

/// Every text file that is, or is about to be, under version control.
fn texts(root: &Path) -> Result<Vec<Text>> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    }
    let names = String::from_utf8(output.stdout).context("a file name that is not UTF-8")?;
    let mut texts = Vec::new();
    for path in names.split('\0').filter(|p| is_text(p)) {
        // A file deleted but not yet committed is listed, too.
        if let Ok(text) = std::fs::read_to_string(root.join(path)) {
            texts.push(Text { path: path.to_owned(), text });
        }
    }
    Ok(texts)
}

fn is_text(path: &str) -> bool {
    let extension = Path::new(path).extension().and_then(|e| e.to_str());
    extension.is_some_and(|e| ["rs", "toml", "md", "sh", "yml", "yaml", "txt"].contains(&e))
}
