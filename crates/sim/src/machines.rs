//! The engine under test: Control and the shards of one array, addressed by number.

use std::collections::{BTreeMap, VecDeque};

use raidus_engine::control::{Command, CommandError, Event, Status};
use raidus_engine::{
    ArrayConfig, Control, Input, IoToken, MemberError, Message, Output, Peer, Request, Scratch, Shard, ShardId,
};
use raidus_parity::Difference;
use raidus_units::Nanos;

use crate::memory::{Memory, Use};
use crate::rng::Rng;

/// Control is number 0, shard `i` number `i + 1`.
pub(crate) struct Machines {
    control: Control,
    shards: Vec<Shard>,
    inboxes: Vec<Inbox>,
}

/// What waits to be told to one machine.
#[derive(Default)]
struct Inbox {
    /// By sender; each in the order sent.
    messages: BTreeMap<usize, VecDeque<Message>>,
    requests: VecDeque<Request>,
    done: Vec<(IoToken, Result<(), MemberError>)>,
    compared: Vec<(IoToken, Vec<Difference>)>,
}

impl Machines {
    pub(crate) fn new(config: &ArrayConfig, memory: &mut Memory) -> Machines {
        let shards = config.tunables.shards;
        let zeroes = memory.alloc(config.tunables.segment_max.bytes(), Use::Zeroes);
        let bytes = config.tunables.scratch_bytes.max(Shard::scratch_min(config));
        let shard = |i| {
            let base = memory.alloc(bytes, Use::Scratch);
            Shard::new(ShardId(i), config, Scratch { base, bytes, zeroes })
        };
        Machines {
            shards: (0..shards).map(shard).collect(),
            control: Control::new(config.clone()),
            inboxes: (0..=shards).map(|_| Inbox::default()).collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.inboxes.len()
    }

    /// Whether there is something to tell the machine.
    pub(crate) fn is_ready(&self, machine: usize, now: Nanos) -> bool {
        self.inboxes[machine].is_full() || self.timeout(machine).is_some_and(|t| t <= now)
    }

    /// The next time a machine wants to be woken.
    pub(crate) fn next_timeout(&self) -> Option<Nanos> {
        (0..self.len()).filter_map(|m| self.timeout(m)).min()
    }

    fn timeout(&self, machine: usize) -> Option<Nanos> {
        match machine.checked_sub(1) {
            None => self.control.poll_timeout(),
            Some(shard) => self.shards[shard].poll_timeout(),
        }
    }

    pub(crate) fn command(&mut self, now: Nanos, command: Command) -> Result<(), CommandError> {
        self.control.command(now, command)
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.control.poll_event()
    }

    pub(crate) fn request(&mut self, shard: u16, request: Request) {
        self.inboxes[usize::from(shard) + 1].requests.push_back(request);
    }

    pub(crate) fn done(&mut self, machine: usize, token: IoToken, result: Result<(), MemberError>) {
        self.inboxes[machine].done.push((token, result));
    }

    pub(crate) fn compared(&mut self, machine: usize, token: IoToken, differences: Vec<Difference>) {
        self.inboxes[machine].compared.push((token, differences));
    }

    /// The array as Control sees it.
    pub(crate) fn status(&self) -> Status {
        self.control.status()
    }

    pub(crate) fn send(&mut self, from: usize, to: Peer, message: Message) -> Result<(), String> {
        let to = number(to);
        let inbox =
            self.inboxes.get_mut(to).ok_or_else(|| format!("a message to machine {to}, which does not exist"))?;
        inbox.messages.entry(from).or_default().push_back(message);
        Ok(())
    }

    /// The next input of a machine, if one waits: messages in order per sender, everything else in any order.
    pub(crate) fn draw(&mut self, machine: usize, rng: &mut Rng) -> Option<Input> {
        let inbox = &mut self.inboxes[machine];
        if let Some((token, differences)) = inbox.compared.pop() {
            return Some(Input::Compared { token, differences });
        }
        inbox.messages.retain(|_, queue| !queue.is_empty());
        let senders = inbox.messages.len();
        let choices = senders + usize::from(!inbox.requests.is_empty()) + usize::from(!inbox.done.is_empty());
        if choices == 0 {
            return None;
        }
        let choice = rng.index(choices);
        if choice < senders {
            let (from, queue) = inbox.messages.iter_mut().nth(choice).expect("counted above");
            let message = queue.pop_front().expect("empty queues were dropped");
            return Some(Input::Message { from: peer(*from), message });
        }
        if choice == senders && !inbox.requests.is_empty() {
            return inbox.requests.pop_front().map(Input::Request);
        }
        let (token, result) = inbox.done.swap_remove(rng.index(inbox.done.len()));
        Some(Input::MemberDone { token, result })
    }

    pub(crate) fn is_timeout_due(&self, machine: usize, now: Nanos) -> bool {
        self.timeout(machine).is_some_and(|t| t <= now)
    }

    pub(crate) fn handle(&mut self, machine: usize, now: Nanos, input: Input) {
        match machine.checked_sub(1) {
            None => self.control.handle(now, input),
            Some(shard) => self.shards[shard].handle(now, input),
        }
    }

    pub(crate) fn end_turn(&mut self, machine: usize, now: Nanos) {
        match machine.checked_sub(1) {
            None => self.control.end_turn(now),
            Some(shard) => self.shards[shard].end_turn(now),
        }
    }

    pub(crate) fn poll_output(&mut self, machine: usize) -> Option<Output> {
        match machine.checked_sub(1) {
            None => self.control.poll_output(),
            Some(shard) => self.shards[shard].poll_output(),
        }
    }
}

impl Inbox {
    fn is_full(&self) -> bool {
        !self.requests.is_empty()
            || !self.compared.is_empty()
            || !self.done.is_empty()
            || self.messages.values().any(|q| !q.is_empty())
    }
}

fn number(peer: Peer) -> usize {
    match peer {
        Peer::Control => 0,
        Peer::Shard(shard) => usize::from(shard.0) + 1,
    }
}

fn peer(number: usize) -> Peer {
    match number.checked_sub(1) {
        None => Peer::Control,
        Some(shard) => Peer::Shard(ShardId(shard as u16)),
    }
}
