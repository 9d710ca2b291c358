//! How one raidus process speaks with another: HTTP and JSON over a Unix socket.
//!
//! | request | answer |
//! |---|---|
//! | `GET /status` | the array as JSON ([`ArrayReport`](crate::portrait::ArrayReport)) |
//! | `GET /mdstat` | its lines of `/proc/mdstat` |
//! | `GET /detail`, `?format=brief`, `?format=export`, `?format=query` | mdadm's texts |
//! | `POST /stop` | stops the array; answers when that is done |
//!
//! Errors are JSON, `{"error": "what is wrong"}`, with a status of 4xx or 5xx.

pub mod client;
pub mod server;

use serde::{Deserialize, Serialize};

/// What a failed request is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: String,
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
