//! Wakers that tell what of a connection is to be looked at, and pass on only what happens while nobody looks.
//!
//! hyper's client has two halves: one drives the socket, the other one takes the answer; they speak through channels and wake
//! each other at every step. Here one task drives both, so each step would wake the very task that has just done it: one
//! useless round through the request's whole future per step. So each half has a waker of its own that marks it as due. A look
//! does what is due until nothing is; what becomes due between two looks wakes the task. A half that is not due is not polled:
//! the driver would try to read its socket each time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;

/// The driver is due: the socket can do something, or the other half has said something.
const DRIVE: u8 = 1;
/// The taking half is due.
const TAKE: u8 = 2;
/// Somebody looks: what becomes due is found at the end of the look.
const LOOKING: u8 = 4;

/// How many rounds one look may have before the task goes to the end of its queue: others want their turn, too. Two are usual.
const MOST_ROUNDS: usize = 4;

/// What is shared with whoever wakes. As a waker it is the driver's.
struct Shared {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Shared {
    fn is_due(&self, half: u8) {
        let before = self.state.fetch_or(half, Ordering::AcqRel);
        // Who left a half due has promised to look again before it waits, so it needs no second call.
        if before & (LOOKING | half) == 0 {
            self.task.wake();
        }
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.is_due(DRIVE);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_due(DRIVE);
    }
}

/// The waker of the half that takes.
struct Taker(Arc<Shared>);

impl Wake for Taker {
    fn wake(self: Arc<Self>) {
        self.0.is_due(TAKE);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.is_due(TAKE);
    }
}

/// One per connection.
pub(super) struct Nudge {
    shared: Arc<Shared>,
    driver: Waker,
    taker: Waker,
}

impl Nudge {
    /// Both halves are due.
    pub(super) fn new() -> Self {
        let shared = Arc::new(Shared { state: AtomicU8::new(DRIVE | TAKE), task: AtomicWaker::new() });
        Self { driver: Waker::from(shared.clone()), taker: Waker::from(Arc::new(Taker(shared.clone()))), shared }
    }

    /// Something is about to be asked of the connection: both halves are due, and the question itself wakes nobody. A look
    /// must follow.
    pub(super) fn begins(&self) {
        self.shared.state.fetch_or(LOOKING | DRIVE | TAKE, Ordering::AcqRel);
    }

    /// Drives and takes what is due, until something was taken or nothing is due.
    ///
    /// Who found something must look again before it waits, as with every stream.
    pub(super) fn look<T>(
        &self,
        context: &mut Context<'_>,
        mut drive: impl FnMut(&mut Context<'_>),
        mut take: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let Shared { state, task } = &*self.shared;
        task.register(context.waker());
        for _ in 0..MOST_ROUNDS {
            let mut due = state.swap(LOOKING, Ordering::AcqRel);
            if due & DRIVE != 0 {
                drive(&mut Context::from_waker(&self.driver));
                // What the driver has said is taken in the same round.
                due |= state.fetch_and(!TAKE, Ordering::AcqRel);
            }
            if due & TAKE != 0
                && let Poll::Ready(found) = take(&mut Context::from_waker(&self.taker))
            {
                state.fetch_or(TAKE, Ordering::AcqRel);
                state.fetch_and(!LOOKING, Ordering::AcqRel);
                return Poll::Ready(found);
            }
            if state.compare_exchange(LOOKING, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Poll::Pending;
            }
        }
        state.fetch_and(!LOOKING, Ordering::AcqRel);
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

    impl Count {
        fn get(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counted() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (count.clone(), Waker::from(count))
    }

    /// The wakers that a look gave to the two halves.
    #[derive(Default)]
    struct Kept {
        driver: Option<Waker>,
        taker: Option<Waker>,
    }

    /// Looks without finding anything; says how often each half was polled.
    fn look(nudge: &Nudge, task: &Waker, kept: &mut Kept) -> (usize, usize) {
        let (mut drives, mut takes) = (0, 0);
        let Kept { driver, taker } = kept;
        let found = nudge.look(
            &mut Context::from_waker(task),
            |context| {
                drives += 1;
                *driver = Some(context.waker().clone());
            },
            |context| {
                takes += 1;
                *taker = Some(context.waker().clone());
                Poll::<()>::Pending
            },
        );
        assert!(found.is_pending());
        (drives, takes)
    }

    #[test]
    fn a_half_that_is_not_due_is_not_polled() {
        let (count, task) = counted();
        let (nudge, mut kept) = (Nudge::new(), Kept::default());
        assert_eq!(look(&nudge, &task, &mut kept), (1, 1));
        assert_eq!(look(&nudge, &task, &mut kept), (0, 0));
        kept.driver.clone().unwrap().wake();
        assert_eq!(look(&nudge, &task, &mut kept), (1, 0));
        kept.taker.clone().unwrap().wake();
        assert_eq!(look(&nudge, &task, &mut kept), (0, 1));
        assert_eq!(count.get(), 2, "what happens between two looks wakes the task");
    }

    #[test]
    fn what_is_due_already_wakes_nobody_again() {
        let (count, task) = counted();
        let (nudge, mut kept) = (Nudge::new(), Kept::default());
        look(&nudge, &task, &mut kept);
        kept.driver.clone().unwrap().wake();
        kept.driver.clone().unwrap().wake();
        assert_eq!(count.get(), 1);
        nudge.begins();
        kept.driver.clone().unwrap().wake();
        kept.taker.clone().unwrap().wake();
        assert_eq!(count.get(), 1);
        assert_eq!(look(&nudge, &task, &mut kept), (1, 1));
    }

    #[test]
    fn what_a_half_says_during_a_look_is_heard_in_it_and_not_by_another_round_of_the_task() {
        let (count, task) = counted();
        let (nudge, mut kept) = (Nudge::new(), Kept::default());
        look(&nudge, &task, &mut kept);
        let Kept { driver: Some(driver), taker: Some(taker) } = kept else { panic!("a half was not polled") };
        // A body that asks for its next piece wakes the driver, whose piece wakes the body.
        taker.wake_by_ref();
        let said = AtomicUsize::new(0);
        let found = nudge.look(
            &mut Context::from_waker(&task),
            |_| {
                said.fetch_add(1, Ordering::Relaxed);
                taker.wake_by_ref();
            },
            |_| {
                if said.load(Ordering::Relaxed) > 0 {
                    return Poll::Ready(());
                }
                driver.wake_by_ref();
                Poll::Pending
            },
        );
        assert_eq!(found, Poll::Ready(()));
        assert_eq!((said.into_inner(), count.get()), (1, 1), "the one call is that before the look");
    }

    #[test]
    fn who_found_something_finds_the_taking_half_due() {
        let (_, task) = counted();
        let nudge = Nudge::new();
        for _ in 0..2 {
            assert_eq!(nudge.look(&mut Context::from_waker(&task), |_| {}, |_| Poll::Ready(7)), Poll::Ready(7));
        }
    }

    #[test]
    fn one_that_never_comes_to_rest_lets_others_have_their_turn() {
        let (count, task) = counted();
        let nudge = Nudge::new();
        let mut drives = 0;
        let found = nudge.look(
            &mut Context::from_waker(&task),
            |context| {
                drives += 1;
                context.waker().wake_by_ref();
            },
            |_| Poll::<()>::Pending,
        );
        assert!(found.is_pending());
        assert_eq!((drives, count.get()), (MOST_ROUNDS, 1), "it would sleep for ever");
    }

    #[test]
    fn the_task_that_looked_last_is_the_one_that_is_woken() {
        let ((first, first_waker), (second, second_waker)) = (counted(), counted());
        let (nudge, mut kept) = (Nudge::new(), Kept::default());
        look(&nudge, &first_waker, &mut kept);
        look(&nudge, &second_waker, &mut kept);
        kept.driver.unwrap().wake();
        assert_eq!((first.get(), second.get()), (0, 1));
    }
}
