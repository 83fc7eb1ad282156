//! How many restarts that no edit asked for go at once, and when no further one begins.
//!
//! An edit restarts the pods of one endpoint because somebody wants it to. A refresh of everything, or a fault of this program,
//! could restart all of a region; these limits keep that to a few endpoints, and to those if they do not come up again.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::plan::inventory;
use crate::report::restarts::{RestartState, UnaskedRestart};

/// The limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartLimits {
    /// Endpoints whose pods are restarted at once, failed ones included.
    pub at_once: usize,
    /// Failed restarts after which none begins any more.
    pub failures: usize,
}

/// Whether a restart that no edit asked for may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// It may; the place is taken until [`Restarts::release`].
    Given,
    /// Not yet: as many as may be are restarting.
    Wait,
    /// Not before somebody has looked at those that failed.
    Stopped,
}

/// How restarts that no edit asked for stand in the region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Under way.
    pub under_way: usize,
    /// Failed and not looked at.
    pub failed: usize,
    /// Whether none begins any more.
    pub stopped: bool,
}

/// What of it is in memory: places that were given and do not show on an object yet, and when an operator last looked.
#[derive(Debug, Default)]
pub struct Restarts {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    given: BTreeSet<String>,
    cleared_at: Option<String>,
    stopped: bool,
}

impl Restarts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for one endpoint. `standing`: what the objects of the region say; `at_once`: the wish's own, lower limit.
    pub fn ask(
        &self,
        endpoint: &str,
        standing: &[UnaskedRestart],
        limits: RestartLimits,
        at_once: Option<u32>,
    ) -> Permission {
        let wished = at_once.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
        let at_once = limits.at_once.min(wished);
        let mut state = self.state();
        let own: BTreeSet<String> = inventory(endpoint).into_iter().map(|key| key.name).collect();
        let counted = state.counted(standing);
        let failed = counted.iter().filter(|restart| restart.state == RestartState::Failed).count();
        // With fewer places than failures that stop, failed ones would hold every place and nobody would hear of it.
        if failed >= limits.failures.min(at_once) {
            return Permission::Stopped;
        }
        let mut taken: BTreeSet<&str> =
            counted.iter().map(|restart| restart.app.as_str()).filter(|app| !own.contains(*app)).collect();
        taken.extend(state.given.iter().map(String::as_str).filter(|name| *name != endpoint));
        if taken.len() >= at_once {
            return Permission::Wait;
        }
        state.given.insert(endpoint.to_owned());
        Permission::Given
    }

    /// The pass that asked is over: what it did shows on the object.
    pub fn release(&self, endpoint: &str) {
        self.state().given.remove(endpoint);
    }

    /// Notes up to when failed restarts were looked at; returns whether that is news.
    pub fn clear(&self, cleared_at: Option<String>) -> bool {
        let mut state = self.state();
        let news = state.cleared_at != cleared_at;
        state.cleared_at = cleared_at;
        news
    }

    /// How things stand, and whether they were stopped or went on since the last look.
    pub fn tally(&self, standing: &[UnaskedRestart], limits: RestartLimits) -> (Tally, bool) {
        let mut state = self.state();
        let counted = state.counted(standing);
        let failed = counted.iter().filter(|restart| restart.state == RestartState::Failed).count();
        let under_way = counted.len() - failed;
        let stopped = failed >= limits.failures.min(limits.at_once);
        let turned = state.stopped != stopped;
        state.stopped = stopped;
        (Tally { under_way, failed, stopped }, turned)
    }
}

impl State {
    /// Restarts that count: those that began after an operator last looked.
    fn counted<'a>(&self, standing: &'a [UnaskedRestart]) -> Vec<&'a UnaskedRestart> {
        let began_later = |restart: &&UnaskedRestart| {
            let Some(cleared) = self.cleared_at.as_deref().and_then(gco_store::time::parse) else { return true };
            gco_store::time::parse(&restart.began).is_none_or(|began| began > cleared)
        };
        standing.iter().filter(began_later).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RestartLimits = RestartLimits { at_once: 3, failures: 2 };

    fn restart(app: &str, state: RestartState) -> UnaskedRestart {
        UnaskedRestart { app: app.to_owned(), began: "2026-11-29T12:00:00+00:00".to_owned(), state }
    }

    fn under_way(app: &str) -> UnaskedRestart {
        restart(app, RestartState::UnderWay)
    }

    fn failed(app: &str) -> UnaskedRestart {
        restart(app, RestartState::Failed)
    }

    #[test]
    fn only_so_many_begin_before_one_is_over() {
        let restarts = Restarts::default();
        for name in ["a", "b", "c"] {
            assert_eq!(restarts.ask(name, &[], LIMITS, None), Permission::Given, "{name}: given, and not seen yet");
        }
        assert_eq!(restarts.ask("d", &[], LIMITS, None), Permission::Wait);
        assert_eq!(restarts.ask("a", &[], LIMITS, None), Permission::Given, "its own place does not stand in its way");
        for name in ["a", "b", "c"] {
            restarts.release(name);
        }
        let standing = [under_way("a"), under_way("b"), under_way("c")];
        assert_eq!(restarts.ask("d", &standing, LIMITS, None), Permission::Wait);
        assert_eq!(restarts.ask("a", &standing, LIMITS, None), Permission::Given);
        assert_eq!(restarts.ask("d", &standing[1..], LIMITS, None), Permission::Wait, "a's place is given");
        restarts.release("a");
        assert_eq!(restarts.ask("d", &standing[1..], LIMITS, None), Permission::Given);
    }

    #[test]
    fn a_wish_may_lower_the_limit_and_not_raise_it() {
        let restarts = Restarts::default();
        assert_eq!(restarts.ask("b", &[under_way("a")], LIMITS, Some(1)), Permission::Wait);
        assert_eq!(restarts.ask("b", &[under_way("a")], LIMITS, Some(2)), Permission::Given);
        let three = [under_way("a"), under_way("c"), under_way("d")];
        assert_eq!(restarts.ask("b", &three, LIMITS, Some(100)), Permission::Wait);
    }

    #[test]
    fn failures_stop_all_until_somebody_has_looked() {
        let restarts = Restarts::default();
        let standing = [failed("a"), under_way("b"), failed("c")];
        assert_eq!(restarts.ask("d", &standing[..2], LIMITS, None), Permission::Given, "one failure is none in a row");
        assert_eq!(restarts.ask("e", &standing, LIMITS, None), Permission::Stopped);
        assert_eq!(
            restarts.ask("e", &standing[..1], LIMITS, Some(1)),
            Permission::Stopped,
            "one at once: the first stops"
        );
        let tally = Tally { under_way: 1, failed: 2, stopped: true };
        assert_eq!(restarts.tally(&standing, LIMITS), (tally, true));
        assert_eq!(restarts.tally(&standing, LIMITS), (tally, false), "said once");
        restarts.release("d");
        assert!(restarts.clear(Some("2026-11-29T12:00:01+00:00".to_owned())));
        assert!(!restarts.clear(Some("2026-11-29T12:00:01+00:00".to_owned())));
        assert_eq!(restarts.tally(&standing, LIMITS), (Tally::default(), true));
        assert_eq!(restarts.ask("e", &standing, LIMITS, None), Permission::Given);
        let later = UnaskedRestart { began: "2026-11-29T12:00:02+00:00".to_owned(), ..failed("f") };
        assert_eq!(restarts.tally(&[later], LIMITS).0, Tally { failed: 1, ..Tally::default() });
    }
}
