//! A waker that passes on only what happens while nobody looks.
//!
//! hyper's two halves of a connection speak to each other through channels and wake each other at every step. Here one task
//! drives both, so each step would wake the very task that has just done it: one useless round through the request's whole
//! future per event. What happens during a look is found by looking once more at the end of it; what happens between two
//! looks wakes the task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;

/// Nobody looks: the task is woken.
const AWAY: u8 = 0;
/// Somebody looks, and nothing has happened since it began.
const LOOKING: u8 = 1;
/// Something has happened during the look.
const NUDGED: u8 = 2;

/// How often one look is repeated before the task goes to the end of its queue: others want their turn, too. Two are usual:
/// one half says something, the other one hears it.
const MOST_LOOKS: usize = 4;

/// What is shared with whoever wakes.
struct Shared {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let noticed = self.state.compare_exchange(LOOKING, NUDGED, Ordering::AcqRel, Ordering::Acquire);
        if noticed == Err(AWAY) {
            self.task.wake();
        }
    }
}

/// One per connection.
pub(super) struct Nudge {
    shared: Arc<Shared>,
    waker: Waker,
}

impl Nudge {
    pub(super) fn new() -> Self {
        let shared = Arc::new(Shared { state: AtomicU8::new(AWAY), task: AtomicWaker::new() });
        let waker = Waker::from(shared.clone());
        Self { shared, waker }
    }

    /// Looks once, and again while something happened that the look may have missed.
    ///
    /// What happened during a look that found something is forgotten: who found something must look again before it waits,
    /// as with every stream.
    pub(super) fn look<T>(
        &self,
        context: &mut Context<'_>,
        mut look: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.shared.task.register(context.waker());
        let mut inner = Context::from_waker(&self.waker);
        for _ in 0..MOST_LOOKS {
            self.shared.state.store(LOOKING, Ordering::Release);
            let found = look(&mut inner);
            let nudged = self.shared.state.swap(AWAY, Ordering::AcqRel) == NUDGED;
            if found.is_ready() || !nudged {
                return found;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counted() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (count.clone(), Waker::from(count))
    }

    #[test]
    fn what_happens_between_two_looks_wakes_the_task() {
        let (count, waker) = counted();
        let nudge = Nudge::new();
        let mut kept = None;
        let found = nudge.look(&mut Context::from_waker(&waker), |inner| {
            kept = Some(inner.waker().clone());
            Poll::<()>::Pending
        });
        assert!(found.is_pending());
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        kept.unwrap().wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_happens_during_a_look_is_found_by_another_look_and_not_by_another_round() {
        let (count, waker) = counted();
        let nudge = Nudge::new();
        let mut looks = 0;
        let found = nudge.look(&mut Context::from_waker(&waker), |inner| {
            looks += 1;
            if looks == 1 {
                inner.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(looks)
        });
        assert_eq!(found, Poll::Ready(2));
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_that_never_comes_to_rest_lets_others_have_their_turn() {
        let (count, waker) = counted();
        let nudge = Nudge::new();
        let mut looks = 0;
        let found = nudge.look(&mut Context::from_waker(&waker), |inner| {
            looks += 1;
            inner.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(found.is_pending());
        assert_eq!(looks, MOST_LOOKS);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "it would sleep for ever");
    }

    #[test]
    fn the_task_that_looked_last_is_the_one_that_is_woken() {
        let ((first, first_waker), (second, second_waker)) = (counted(), counted());
        let nudge = Nudge::new();
        let mut kept = None;
        for waker in [&first_waker, &second_waker] {
            let _ = nudge.look(&mut Context::from_waker(waker), |inner| {
                kept = Some(inner.waker().clone());
                Poll::<()>::Pending
            });
        }
        kept.unwrap().wake();
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
    }
}
