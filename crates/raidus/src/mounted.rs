//! The texts beside a mounted array: mdstat, and the array's own attributes.

use std::sync::Arc;

use raidus_engine::control::Status;
use raidus_fuse::{Files, Text};

use crate::live::Live;

/// The texts of a running array. Of one that has stopped, they are empty.
pub fn files(live: &Arc<Live>) -> Files {
    let attribute = |name: &'static str| {
        let value = move |live: &Live, status: &Status| live.array_attribute(name, status).unwrap_or_default() + "\n";
        (name.to_owned(), text(live, value))
    };
    Files {
        mdstat: text(live, |live, status| raidus_text::mdstat(std::slice::from_ref(&live.portrait.view(status)))),
        attributes: live.array_attributes().into_iter().map(attribute).collect(),
    }
}

fn text(live: &Arc<Live>, show: impl Fn(&Live, &Status) -> String + Send + Sync + 'static) -> Text {
    let live = Arc::clone(live);
    Box::new(move || live.array.status().map_or_else(String::new, |status| show(&live, &status)))
}
