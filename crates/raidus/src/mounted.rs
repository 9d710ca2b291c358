//! The texts beside a mounted array: mdstat, and md's attributes, which can be set by writing to them.

use std::sync::Arc;

use raidus_engine::control::CommandError;
use raidus_fuse::{AttributeFile, Texts, WriteError};

use crate::live::set::is_settable;
use crate::live::{Live, Refusal};

/// The texts of a running array. Of one that has stopped, there are none.
pub fn texts(live: &Arc<Live>) -> Arc<dyn Texts> {
    Arc::new(Shown(Arc::clone(live)))
}

struct Shown(Arc<Live>);

impl Texts for Shown {
    fn mdstat(&self) -> String {
        let view = self.0.array.status().map(|status| self.0.portrait.view(&status));
        view.map_or_else(String::new, |view| raidus_text::mdstat(std::slice::from_ref(&view)))
    }

    fn attributes(&self) -> Vec<AttributeFile> {
        let all = self.0.array.status().map(|status| self.0.attributes(&status)).unwrap_or_default();
        let file = |name: String| AttributeFile { writable: is_settable(&name), path: name };
        all.into_iter().map(|attribute| file(attribute.name)).collect()
    }

    fn read(&self, path: &str) -> Option<String> {
        let status = self.0.array.status()?;
        Some(self.0.attribute(path, &status)? + "\n")
    }

    /// Why not is for the log: the writer is told a number only.
    fn write(&self, path: &str, value: &str) -> Result<(), WriteError> {
        self.0.set(path, value).map_err(|refusal| {
            tracing::warn!(array = self.0.portrait.name, attribute = path, value = value.trim(), "not set: {refusal}");
            error(&refusal)
        })
    }
}

fn error(refusal: &Refusal) -> WriteError {
    match refusal {
        Refusal::Stopped | Refusal::Command(CommandError::Stopping) => WriteError::Stopped,
        Refusal::Command(CommandError::ReadOnly) | Refusal::StartedReadOnly => WriteError::ReadOnly,
        Refusal::BadValue { .. }
        | Refusal::NoAttribute(_)
        | Refusal::ReadOnlyAttribute(_)
        | Refusal::NotAMember { .. }
        | Refusal::Command(CommandError::NoRedundancy | CommandError::OutOfRange) => WriteError::Invalid,
        Refusal::Command(_)
        | Refusal::Member { .. }
        | Refusal::Ambiguous { .. }
        | Refusal::Grow(_)
        | Refusal::Join(_)
        | Refusal::Add { .. }
        | Refusal::Device { .. }
        | Refusal::HoldsData { .. }
        | Refusal::Request(_) => WriteError::Busy,
        Refusal::Open(_) | Refusal::System(_) => WriteError::Failed,
    }
}
