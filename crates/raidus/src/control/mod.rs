//! How one raidus process speaks with another: HTTP and JSON over a Unix socket.
//!
//! | request | answer |
//! |---|---|
//! | `GET /status` | the array as JSON ([`ArrayReport`](crate::portrait::ArrayReport)) |
//! | `GET /mdstat` | its lines of `/proc/mdstat` |
//! | `GET /detail`, `?format=brief`, `?format=export`, `?format=query` | mdadm's texts |
//! | `POST /stop` | stops the array; answers when that is done |
//! | `POST /members/add` [`AddRequest`] | a device joins ([`Joined`](crate::live::members::Joined)) |
//! | `POST /members/act` [`ActRequest`] | fails or removes members; their paths |
//! | `POST /members/replace` [`ReplaceRequest`] | a member is rebuilt onto a spare ([`Replaced`](crate::live::members::Replaced)) |
//! | `POST /grow` [`Grow`](crate::live::grow::Grow) | adds or removes the bitmap; answers when that is done ([`Grown`](crate::live::grow::Grown)) |
//! | `POST /sync` [`SyncWord`] | begins a check or repair, interrupts, freezes |
//! | `GET /scrub`, `?after=N&seconds=S` | the last check or repair; waits up to S seconds for one after the Nth ([`ScrubAnswer`]) |
//! | `GET /wait`, `?seconds=S` | waits up to S seconds until nothing is synced or has to be ([`Settling`](crate::live::Settling)) |
//! | `GET /events`, `?after=N&seconds=S` | what happened after event N; waits up to S seconds for something ([`Batch`](crate::live::feed::Batch)) |
//! | `GET /attributes` | md's attributes, as a list of [`Attribute`](crate::live::attributes::Attribute) |
//! | `POST /attributes` [`Attribute`](crate::live::attributes::Attribute) | sets one |
//! | `POST /map` [`MapRequest`] | what is where |
//!
//! Errors are JSON, `{"error": "what is wrong"}`, with a status of 4xx or 5xx.

pub mod client;
pub mod server;

use serde::{Deserialize, Serialize};

use crate::live::chart::{PlaceReport, SectorReport};
use crate::live::members::{Action, Join, Named};
use crate::live::scrub::ScrubReport;

/// What a failed request is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: String,
}

/// A device is to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddRequest {
    /// The device.
    pub device: Named,
    /// As what.
    pub how: Join,
}

/// Something is to be done to members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActRequest {
    /// What.
    pub action: Action,
    /// A member; `detached` means those that are gone, `failed` those that failed.
    pub device: Named,
}

/// A member is to be rebuilt onto a spare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplaceRequest {
    /// The member.
    pub device: Named,
    /// The spare it has to be.
    pub with: Option<Named>,
}

/// What is written to `sync_action`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncWord {
    /// `check`, `repair`, `idle`, `frozen`.
    pub action: String,
}

/// The last check or repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubAnswer {
    /// How many ended since the array was started.
    pub finished: u64,
    /// What the last one found.
    pub report: Option<ScrubReport>,
    /// md's `sync_action`.
    pub running: String,
}

/// A place of the array, or of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MapRequest {
    /// A byte of the array.
    Array(u64),
    /// A sector of a member.
    Member(Named, u64),
}

/// What is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MapAnswer {
    /// The sectors of members that hold a byte of the array, or guard it.
    Array(Vec<PlaceReport>),
    /// What a sector of a member is.
    Member(SectorReport),
}

/// How long a request may wait, and for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patience {
    /// For something after this number.
    #[serde(default)]
    pub after: u64,
    /// Seconds.
    #[serde(default)]
    pub seconds: u64,
}

/// The texts `/detail` can give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DetailFormat {
    /// `mdadm --detail`.
    #[default]
    Full,
    /// `mdadm --detail --brief`.
    Brief,
    /// `mdadm --detail --export`.
    Export,
    /// `mdadm --query`.
    Query,
}

impl DetailFormat {
    /// As it stands in the request.
    pub const fn word(self) -> &'static str {
        match self {
            DetailFormat::Full => "full",
            DetailFormat::Brief => "brief",
            DetailFormat::Export => "export",
            DetailFormat::Query => "query",
        }
    }
}
