//! What Control has to say, in order, and the names of its I/Os.

use std::collections::VecDeque;

use raidus_units::MemberId;

use crate::io::{IoToken, MemberIo, MemberOp, Output};
use crate::msg::{Message, Peer, ShardId};

/// Outputs that the driver has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: VecDeque<Output>,
    next_token: u64,
    /// I/Os that have not ended.
    under_way: u64,
}

impl Outbox {
    pub fn io(&mut self, member: MemberId, op: MemberOp) -> IoToken {
        let token = IoToken(self.next_token);
        self.next_token += 1;
        self.under_way += 1;
        self.queue.push_back(Output::Io(MemberIo { token, member, op }));
        token
    }

    pub fn send(&mut self, shard: ShardId, message: Message) {
        self.queue.push_back(Output::Send { to: Peer::Shard(shard), message });
    }

    pub fn broadcast(&mut self, shards: u16, message: &Message) {
        for shard in 0..shards {
            self.send(ShardId(shard), message.clone());
        }
    }

    pub fn on_io_done(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Whether no I/O is under way.
    pub fn idle(&self) -> bool {
        self.under_way == 0
    }

    pub fn pop(&mut self) -> Option<Output> {
        self.queue.pop_front()
    }
}
