//! An array for load generators outside: served over NBD, with what it took counted.

use std::sync::Arc;

use raidus_nbd::{Address, BlockSizes, Export, NbdService, listen};
use raidus_runtime::Tally;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::session::Running;
use crate::error::Failure;
use crate::output;

/// What was counted while the array was served.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Served {
    /// Requests of clients.
    pub requests: u64,
    pub member_reads: u64,
    pub member_writes: u64,
    /// System calls of the threads that run the array.
    pub system_calls: u64,
    pub system_calls_per_request: f64,
    pub messages_per_request: f64,
}

/// Serves until a signal says stop. A line on standard output says where, as soon as clients can connect.
pub fn run(running: &Running, address: &str) -> Result<Served, Failure> {
    let parsed = Address::parse(address);
    let parsed = parsed.ok_or_else(|| {
        Failure::Usage(format!(
            "--serve: '{address}' is not an address: ADDRESS:PORT for TCP, or the path of a Unix socket"
        ))
    })?;
    let system = |what| move |source| Failure::System { what, source };
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(system("cannot wait for signals"))?;
    let (socket, endpoint) = listen(&parsed)?;
    let sizes = BlockSizes::for_logical_block(running.handle.block());
    let service = Arc::new(NbdService::new(Export::new("bench", running.handle.size().bytes(), sizes)?));
    let before = running.handle.tally();
    running.handle.serve(socket, Arc::clone(&service) as _);
    output::text(format!("serving {}\n", endpoint.uri("")))?;
    signals.forever().next();
    service.stop();
    Ok(served(running.handle.tally().since(before)))
}

fn served(tally: Tally) -> Served {
    let per_request = |n: u64| n as f64 / tally.requests.max(1) as f64;
    Served {
        requests: tally.requests,
        member_reads: tally.member_reads,
        member_writes: tally.member_writes,
        system_calls: tally.syscalls,
        system_calls_per_request: per_request(tally.syscalls),
        messages_per_request: per_request(tally.messages),
    }
}

impl Served {
    pub fn table(&self) -> String {
        let Served { requests, member_reads, member_writes, system_calls, .. } = self;
        format!(
            "requests                {requests}\n\
             member reads            {member_reads}\n\
             member writes           {member_writes}\n\
             system calls            {system_calls}\n\
             system calls/request    {:.3}\n\
             messages/request        {:.3}\n",
            self.system_calls_per_request, self.messages_per_request
        )
    }
}
