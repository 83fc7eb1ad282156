//! Waiting for a place when every backend of a role is full: in turn, bounded in number; the bound in time is the
//! caller's.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The queue of one role.
#[derive(Debug)]
pub struct Queue {
    capacity: usize,
    waiting: AtomicUsize,
    freed: Notify,
}

impl Queue {
    /// A queue in which so many may wait.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity, waiting: AtomicUsize::new(0), freed: Notify::new() }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A place in it; `None` when it is full.
    pub fn enter(&self) -> Option<Place<'_>> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.capacity {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Place { queue: self })
    }

    /// A request ended: the one that has waited longest looks again.
    pub fn place_freed(&self) {
        if self.waiting() > 0 {
            self.freed.notify_one();
        }
    }

    /// The backends changed: everyone looks again.
    pub fn everything_changed(&self) {
        self.freed.notify_waiters();
    }
}

/// One that waits. Given up by dropping it.
#[derive(Debug)]
pub struct Place<'q> {
    queue: &'q Queue,
}

impl Place<'_> {
    /// Ends when it is this one's turn to look. Made before looking, so that nothing in between is missed.
    pub fn freed(&self) -> Notified<'_> {
        self.queue.freed.notified()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
        // There may be more free places than this one took.
        self.queue.place_freed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_a_place_given_up_can_be_taken_again() {
        let queue = Queue::new(2);
        let first = queue.enter().unwrap();
        let second = queue.enter().unwrap();
        assert!(queue.enter().is_none());
        assert_eq!(queue.waiting(), 2);
        drop(first);
        let third = queue.enter().unwrap();
        assert!(queue.enter().is_none());
        drop((second, third));
        assert_eq!(queue.waiting(), 0);
        assert!(Queue::new(0).enter().is_none(), "no queue at all");
    }
}
