//! Requests that wait because the operator said so (md's `suspend_lo` and `suspend_hi`).
//!
//! What is held back has no part in anything yet: it holds no lock, lease or memory. Control is told once everything that came before the
//! suspension has ended.

use std::collections::VecDeque;

use raidus_units::Nanos;

use super::{Origin, Shard};
use crate::io::{Output, Reply, Request, RequestError};
use crate::msg::{Message, Suspension};

/// What waits, and what is waited for.
#[derive(Debug, Default)]
pub(super) struct Suspended {
    what: Suspension,
    /// The newest suspension's.
    pub number: u64,
    pub waiting: VecDeque<Request>,
    /// Clients' requests under way that began before it.
    before: usize,
}

impl Shard {
    /// Begins a request, unless it has to wait.
    pub(super) fn admit(&mut self, now: Nanos, request: Request) {
        if self.suspended.what.holds(request.op, request.sector, request.len) {
            self.suspended.waiting.push_back(request);
        } else {
            self.begin(now, request);
        }
    }

    pub(super) fn on_suspend(&mut self, now: Nanos, number: u64, what: Suspension) {
        self.suspended.what = what;
        self.suspended.number = number;
        let clients = self.requests.iter().filter(|(_, r)| matches!(r.origin, Origin::Client(_)));
        self.suspended.before = clients.count();
        // In the order they came; what still has to wait does so again.
        for request in std::mem::take(&mut self.suspended.waiting) {
            self.on_request(now, request);
        }
        self.tell_if_suspended();
    }

    /// A request of the suspension before `era` counts as one that came before.
    pub(super) fn on_request_ended(&mut self, era: u64) {
        if era < self.suspended.number {
            self.suspended.before -= 1;
            self.tell_if_suspended();
        }
    }

    fn tell_if_suspended(&mut self) {
        if self.suspended.before == 0 {
            self.tell_control(Message::Suspended { number: self.suspended.number });
        }
    }

    /// The array stops: what waits will not be done.
    pub(super) fn refuse_suspended(&mut self) {
        for request in std::mem::take(&mut self.suspended.waiting) {
            self.out.push_back(Output::Reply(Reply { id: request.id, result: Err(RequestError::Stopped) }));
        }
    }
}
