//! The server: sockets, and the joint between the codec and the runtime.

mod connection;
mod listen;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use raidus_runtime::stream::{Connection, PeerAddress, Service};

use crate::Export;
use connection::NbdConnection;

pub use listen::{Address, BindError, Endpoint, listen};

/// Serves one export to any number of clients, each on whichever reactor it landed.
#[derive(Debug)]
pub struct NbdService {
    export: Arc<Export>,
    stopping: Arc<AtomicBool>,
}

impl NbdService {
    /// A service for this export. Its longest request is lowered to the reactors' longest buffer if need be.
    pub fn new(export: Export) -> NbdService {
        NbdService { export: Arc::new(export), stopping: Arc::default() }
    }

    /// From now on refuse what clients ask with "the server is stopping"; what is under way still ends properly.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// What is served.
    pub fn export(&self) -> &Export {
        &self.export
    }
}

impl Service for NbdService {
    fn connect(&self, peer: &PeerAddress) -> Box<dyn Connection> {
        Box::new(NbdConnection::new(peer, &self.export, &self.stopping))
    }
}
