//! What other threads put before a reactor, and how they wake it.
//!
//! Both queues are bounded and lock-free. A reactor never waits for another: what does not fit into a peer's queue it keeps and
//! tries again next turn, in order.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::Sender;

use crossbeam_queue::ArrayQueue;
use raidus_engine::control::{Command, CommandError, Event, Status, StopError};
use raidus_engine::{Message, Peer};
use raidus_units::MemberId;

use crate::client::ClientRequest;
use crate::counters::Tally;
use crate::local::LocalClient;
use crate::members::MemberDevice;
use crate::stream::{PeerAddress, ServiceId, SharedService};

/// A message between state machines on different reactors.
pub(crate) struct Envelope {
    pub(crate) from: Peer,
    pub(crate) to: Peer,
    pub(crate) message: Message,
}

/// Everything else a reactor is asked.
pub(crate) enum Mail {
    /// A request from another thread.
    Request(ClientRequest),
    /// A connected socket to serve.
    Connection(OwnedFd, PeerAddress, SharedService),
    /// A listening socket to accept on.
    Listen(ServiceId, OwnedFd, SharedService),
    /// Accept no more; dropped when done.
    StopListening(ServiceId, Sender<()>),
    /// End all connections in order; dropped when the last is closed.
    CloseStreams(Sender<()>),
    /// Break all connections.
    SeverStreams,
    /// For Control; the answer goes there.
    Command(Box<Command>, Sender<Result<(), CommandError>>),
    /// A device joins the array; the answer is whether there is room.
    Join(Arc<MemberDevice>, Sender<bool>),
    /// The device that joined last is not wanted.
    Unjoin,
    /// A member was removed.
    Retire(MemberId),
    /// Of Control.
    Status(Sender<Status>),
    /// What was counted so far.
    Tally(Sender<Tally>),
    /// A client to run on the reactor's thread.
    Attach(Box<dyn LocalClient>),
    /// Every event of Control from now on.
    Subscribe(Sender<Event>),
    /// Stop Control and tell how that went.
    Stop(Sender<Result<(), StopError>>),
    /// End the reactor as soon as no I/O is under way.
    Exit,
}

const MESSAGES_MAX: usize = 4096;
/// More than the requests of clients that may be under way, so that mail of other kinds finds room.
pub(crate) const MAIL_MAX: usize = 4096;

/// A reactor's in-tray.
pub(crate) struct Mailbox {
    messages: ArrayQueue<Envelope>,
    mail: ArrayQueue<Mail>,
    asleep: AtomicBool,
    closed: AtomicBool,
    wake: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Arc<Mailbox>> {
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Mailbox {
            messages: ArrayQueue::new(MESSAGES_MAX),
            mail: ArrayQueue::new(MAIL_MAX),
            asleep: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            wake,
        }))
    }

    /// Gives the message back if there is no room. The receiver is woken by [`wake`](Self::wake).
    pub(crate) fn push_message(&self, envelope: Envelope) -> Result<(), Envelope> {
        self.messages.push(envelope)
    }

    /// Posts mail and wakes the reactor. Gives it back if the reactor has ended, or there is no room.
    pub(crate) fn post(&self, mail: Mail) -> Result<(), Mail> {
        if self.closed.load(Ordering::Acquire) {
            return Err(mail);
        }
        self.mail.push(mail)?;
        self.wake();
        if self.closed.load(Ordering::SeqCst) {
            // The reactor may have looked for the last time before the push.
            self.discard();
        }
        Ok(())
    }

    /// Wakes the reactor if it sleeps; whether it had to be.
    pub(crate) fn wake(&self) -> bool {
        // Pairs with the fence in `prepare_to_sleep`: either this sees the reactor asleep, or the reactor sees what was pushed.
        fence(Ordering::SeqCst);
        let asleep = self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel);
        if asleep {
            self.kick();
        }
        asleep
    }

    /// Ends the reactor's wait, asleep or not.
    pub(crate) fn kick(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn pop_message(&self) -> Option<Envelope> {
        self.messages.pop()
    }

    pub(crate) fn pop_mail(&self) -> Option<Mail> {
        self.mail.pop()
    }

    /// Says that the reactor sleeps now; false if there is something to do first.
    pub(crate) fn prepare_to_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.messages.is_empty() && self.mail.is_empty() {
            return true;
        }
        self.awake();
        false
    }

    /// Says that the reactor runs.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// The descriptor that becomes readable on [`wake`](Self::wake).
    pub(crate) fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// No reactor reads this any more: whatever is in it fails.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.discard();
        while self.messages.pop().is_some() {}
    }

    /// Whether the reactor has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn discard(&self) {
        while let Some(mail) = self.mail.pop() {
            if let Mail::Request(request) = mail {
                request.refuse(raidus_engine::RequestError::Stopped);
            }
        }
    }
}
