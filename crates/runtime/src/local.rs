//! Clients inside the process: they live on a reactor's thread, as connections do, but have no socket.

use raidus_engine::RequestError;

use crate::memory::{Buffer, BufferPool};
use crate::stream::StreamRequest;

/// A client that runs on a reactor's thread. No call may block.
pub trait LocalClient: Send {
    /// It has arrived: the first call. Memory from the pool is registered with the ring, so members reach it fastest.
    fn attached(&mut self, pool: &BufferPool) {
        let _ = pool;
    }

    /// Adds the requests that begin now; called once a turn.
    fn poll(&mut self, requests: &mut Vec<StreamRequest>);

    /// Whether [`poll`](Self::poll) has something; the reactor does not sleep then.
    fn is_ready(&self) -> bool;

    /// A request ended. `buffer` is the one it was begun with.
    fn reply(&mut self, cookie: u64, result: Result<(), RequestError>, buffer: Option<Buffer>);

    /// Nothing is under way and nothing comes any more: it may be dropped.
    fn is_finished(&self) -> bool;
}

/// The local clients of a reactor.
#[derive(Default)]
pub(crate) struct Locals {
    clients: slab::Slab<Box<dyn LocalClient>>,
}

impl Locals {
    pub(crate) fn attach(&mut self, mut client: Box<dyn LocalClient>, pool: &BufferPool) {
        client.attached(pool);
        self.clients.insert(client);
    }

    /// Takes the requests of all clients, each with its client, and lets go of those that have finished.
    pub(crate) fn take_requests(&mut self, into: &mut Vec<(usize, StreamRequest)>, spare: &mut Vec<StreamRequest>) {
        if self.clients.is_empty() {
            return;
        }
        for (key, client) in &mut self.clients {
            if client.is_ready() {
                client.poll(spare);
                into.extend(spare.drain(..).map(|request| (key, request)));
            }
        }
        self.clients.retain(|_, client| !client.is_finished());
    }

    pub(crate) fn reply(
        &mut self,
        client: usize,
        cookie: u64,
        result: Result<(), RequestError>,
        buffer: Option<Buffer>,
    ) {
        // One that finished has nothing under way.
        if let Some(client) = self.clients.get_mut(client) {
            client.reply(cookie, result, buffer);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.clients.iter().any(|(_, client)| client.is_ready() || client.is_finished())
    }
}
