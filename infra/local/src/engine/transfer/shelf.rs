//! KV that prefill keeps until decode fetches it, and decodes that came first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// The KV of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kv {
    /// Of the prompt as the request spells it: decode notices by it when it was given another request's.
    pub(crate) prompt_hash: u64,
    pub(crate) prompt_tokens: usize,
    pub(crate) bytes: usize,
}

/// Engine id and transfer id.
pub(crate) type Key = (String, String);

/// What is kept, and who waits for what is not there yet. A transfer id has one consumer.
#[derive(Debug)]
pub(crate) struct Shelf {
    /// `VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`: KV that nobody fetched for so long is freed.
    keep_for: Duration,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    kept: HashMap<Key, Kv>,
    by_age: VecDeque<(Instant, Key)>,
    waiting: HashMap<Key, oneshot::Sender<Kv>>,
    expired: u64,
}

/// KV that is there, or a place in the queue for it.
#[derive(Debug)]
pub(crate) enum Taken {
    Kv(Kv),
    Later(oneshot::Receiver<Kv>),
}

impl Shelf {
    pub(crate) fn new(keep_for: Duration) -> Self {
        Self { keep_for, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps KV, or hands it to the decode that waits for it.
    pub(crate) fn keep(&self, key: Key, kv: Kv, now: Instant) {
        let mut inner = self.inner();
        inner.free_what_is_too_old(now, self.keep_for);
        // A waiting decode that has gone away meanwhile took its receiver with it.
        let unwanted = inner.waiting.remove(&key).is_none_or(|waiting| waiting.send(kv).is_err());
        if unwanted {
            inner.by_age.push_back((now, key.clone()));
            inner.kept.insert(key, kv);
        }
    }

    /// Takes KV off the shelf, or waits for it.
    pub(crate) fn take(&self, key: Key, now: Instant) -> Taken {
        let mut inner = self.inner();
        inner.free_what_is_too_old(now, self.keep_for);
        if let Some(kv) = inner.kept.remove(&key) {
            return Taken::Kv(kv);
        }
        let (sender, receiver) = oneshot::channel();
        inner.waiting.retain(|_, waiting| !waiting.is_closed());
        inner.waiting.insert(key, sender);
        Taken::Later(receiver)
    }

    /// How much KV was freed because nobody fetched it, and how much is kept now.
    pub(crate) fn counts(&self, now: Instant) -> (u64, usize) {
        let mut inner = self.inner();
        inner.free_what_is_too_old(now, self.keep_for);
        (inner.expired, inner.kept.len())
    }
}

impl Inner {
    fn free_what_is_too_old(&mut self, now: Instant, keep_for: Duration) {
        while let Some((_, key)) = self.by_age.pop_front_if(|(since, _)| now.duration_since(*since) >= keep_for) {
            // What was fetched is in the queue of ages until its turn comes.
            if self.kept.remove(&key).is_some() {
                self.expired += 1;
                tracing::warn!(transfer_id = key.1, "timed out without being sent");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KV: Kv = Kv { prompt_hash: 7, prompt_tokens: 3, bytes: 3072 };

    fn key() -> Key {
        ("engine".to_owned(), "xfer".to_owned())
    }

    #[test]
    fn a_transfer_id_is_fetched_once_whoever_comes_first() {
        let shelf = Shelf::new(Duration::from_secs(20));
        let now = Instant::now();
        let Taken::Later(mut early) = shelf.take(key(), now) else { panic!("nothing was kept yet") };
        shelf.keep(key(), KV, now);
        assert_eq!(early.try_recv(), Ok(KV));
        shelf.keep(key(), KV, now);
        assert!(matches!(shelf.take(key(), now), Taken::Kv(KV)));
        assert!(matches!(shelf.take(key(), now), Taken::Later(_)));
    }

    #[test]
    fn kv_of_a_decode_that_left_stays_until_it_is_too_old() {
        let shelf = Shelf::new(Duration::from_secs(20));
        let now = Instant::now();
        drop(shelf.take(key(), now));
        shelf.keep(key(), KV, now);
        assert_eq!(shelf.counts(now + Duration::from_secs(19)), (0, 1));
        assert_eq!(shelf.counts(now + Duration::from_secs(20)), (1, 0));
    }
}
