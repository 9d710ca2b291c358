//! Who may write: any number of writers of whole blocks, or one that reads the rest of a block first.
//!
//! Without it, a write of a whole block that ends between the two halves of a read-modify-write would be undone.
//! Served in the order of arrival, so that neither side starves.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number the next to arrive is given.
    next: u64,
    /// The number that may enter.
    serving: u64,
    /// Writers of whole blocks inside.
    writers: usize,
    /// One that is alone is inside.
    alone: bool,
}

/// A writer of whole blocks is inside until this is dropped, on any thread.
#[derive(Debug)]
pub struct Pass(Arc<Gate>);

/// Nobody else is inside until this is dropped.
#[derive(Debug)]
pub struct Alone<'a>(&'a Gate);

impl Gate {
    /// Enters beside other writers of whole blocks. Waits while somebody is alone.
    pub fn enter(self: &Arc<Gate>) -> Pass {
        let mut state = self.wait_turn(|state| !state.alone);
        state.writers += 1;
        drop(state);
        // The next one may be a writer too.
        self.changed.notify_all();
        Pass(Arc::clone(self))
    }

    /// Waits until everybody has left.
    pub fn alone(&self) -> Alone<'_> {
        self.wait_turn(|state| !state.alone && state.writers == 0).alone = true;
        Alone(self)
    }

    fn wait_turn(&self, free: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let turn = state.next;
        state.next += 1;
        while state.serving != turn || !free(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.serving += 1;
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, leave: impl Fn(&mut State)) {
        let mut state = self.lock();
        leave(&mut state);
        let awaited = state.serving != state.next && state.writers == 0;
        drop(state);
        if awaited {
            self.changed.notify_all();
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.leave(|state| state.writers -= 1);
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.leave(|state| state.alone = false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    #[test]
    fn one_is_alone_or_many_are_inside() {
        let gate = Arc::new(Gate::default());
        // Writers inside, or -1 for one that is alone.
        let inside = AtomicI64::new(0);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    for round in 0..2000 {
                        if (round + n) % 3 == 0 {
                            let _alone = gate.alone();
                            assert_eq!(inside.swap(-1, Ordering::SeqCst), 0);
                            assert_eq!(inside.swap(0, Ordering::SeqCst), -1);
                        } else {
                            let _pass = gate.enter();
                            assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        let state = gate.lock();
        assert_eq!((state.writers, state.alone, state.serving), (0, false, state.next));
    }
}
