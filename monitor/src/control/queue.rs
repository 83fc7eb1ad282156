//! Which endpoint gets a pass when. Pure: times and jitter are arguments.
//!
//! Per endpoint at most one pass runs; what arrives meanwhile leads to one more. A failing endpoint waits longer each
//! time, by the kind of its failure; only an edit of its row ends that wait early, not the noise of its own pods.

use std::collections::BTreeMap;
use std::time::Duration;

use gco_runtime::clock::BootTime;

use crate::report::Category;

/// Events of the cluster arrive in bursts (a rollout is dozens); they are collected for this long.
const CLUSTER_EVENT_DELAY: Duration = Duration::from_millis(50);

/// Why an endpoint is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its row changed, or leadership did: at once, whatever failed before.
    Row,
    /// An object of it changed.
    Cluster,
    /// A full pass, or a timer.
    Timer,
}

/// How a pass ended, as far as the queue cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing more to do until something happens.
    Rest,
    /// Look again after this long, whatever happens.
    Again(Duration),
    /// It failed; `least` is how long the server asked to wait.
    Failed {
        /// Kind of failure.
        category: Category,
        /// Shortest wait.
        least: Duration,
    },
}

/// First and longest wait after a failure.
fn back_off(category: Category) -> (Duration, Duration) {
    let (first_milliseconds, longest_seconds) = match category {
        // The object changed under us: what it changed to is already known.
        Category::Conflict => (100, 10),
        Category::Throttled => (1_000, 60),
        // An outage ends for everybody at once; waiting longer than this only adds to it.
        Category::Unavailable => (500, 15),
        // Only an edit or somebody else's action helps.
        Category::Invalid | Category::Forbidden => (5_000, 300),
        Category::Fenced => (500, 5),
        Category::Bug => (5_000, 300),
    };
    (Duration::from_millis(first_milliseconds), Duration::from_secs(longest_seconds))
}

/// The wait after the `failures`-th failure in a row: doubling, within three quarters and five quarters of it.
fn wait_after(category: Category, failures: u32, least: Duration, jitter: f64) -> Duration {
    let (first, longest) = back_off(category);
    let doubled = first.saturating_mul(1_u32 << failures.saturating_sub(1).min(16)).min(longest);
    doubled.mul_f64(0.75 + jitter.clamp(0.0, 1.0) / 2.0).max(least)
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// When a pass is due; `None`: not at all.
    due: Option<BootTime>,
    /// Not before this, but for an edit of the row.
    not_before: Option<BootTime>,
    /// An edit of the row is among the wishes.
    urgent: bool,
    running: bool,
    failures: u32,
}

/// The queue.
#[derive(Debug, Default)]
pub struct Queue {
    entries: BTreeMap<String, Entry>,
    running: usize,
}

impl Queue {
    /// Wishes a pass.
    pub fn mark(&mut self, name: &str, cause: Cause, now: BootTime) {
        let entry = self.entries.entry(name.to_owned()).or_default();
        let due = match cause {
            Cause::Row => {
                entry.not_before = None;
                entry.failures = 0;
                entry.urgent = true;
                now
            }
            Cause::Cluster => (now + CLUSTER_EVENT_DELAY).max(entry.not_before.unwrap_or(now)),
            Cause::Timer => now.max(entry.not_before.unwrap_or(now)),
        };
        entry.due = Some(entry.due.map_or(due, |known| known.min(due)));
    }

    /// Forgets an endpoint whose row is gone. A running pass ends by itself.
    pub fn forget(&mut self, name: &str) {
        if let Some(entry) = self.entries.get_mut(name) {
            if entry.running {
                *entry = Entry { running: true, ..Entry::default() };
            } else {
                self.entries.remove(name);
            }
        }
    }

    /// Forgets every wish, as a standby does.
    pub fn clear(&mut self) {
        self.entries.retain(|_, entry| {
            *entry = Entry { running: entry.running, ..Entry::default() };
            entry.running
        });
    }

    /// Takes endpoints whose pass is due, oldest first, so that at most `limit` run.
    pub fn take(&mut self, now: BootTime, limit: usize) -> Vec<String> {
        let free = limit.saturating_sub(self.running);
        if free == 0 {
            return Vec::new();
        }
        let mut due: Vec<(BootTime, &String)> = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.running)
            .filter_map(|(name, entry)| Some((entry.due.filter(|due| *due <= now)?, name)))
            .collect();
        due.sort();
        let names: Vec<String> = due.into_iter().take(free).map(|(_, name)| name.clone()).collect();
        for name in &names {
            if let Some(entry) = self.entries.get_mut(name) {
                entry.running = true;
                entry.urgent = false;
                entry.due = None;
                self.running += 1;
            }
        }
        names
    }

    /// A pass has ended. `jitter` is from 0 to 1.
    pub fn ended(&mut self, name: &str, ended: Ended, now: BootTime, jitter: f64) {
        let Some(entry) = self.entries.get_mut(name).filter(|entry| entry.running) else { return };
        entry.running = false;
        self.running -= 1;
        let wish = match ended {
            Ended::Rest => {
                entry.failures = 0;
                entry.not_before = None;
                None
            }
            Ended::Again(wait) => {
                entry.failures = 0;
                entry.not_before = None;
                Some(now + wait)
            }
            // An edit that arrived while the old row failed is tried at once.
            Ended::Failed { .. } if entry.urgent => None,
            Ended::Failed { category, least } => {
                entry.failures = entry.failures.saturating_add(1);
                let not_before = now + wait_after(category, entry.failures, least, jitter);
                entry.not_before = Some(not_before);
                // What else arrived waits too.
                entry.due = None;
                Some(not_before)
            }
        };
        entry.due = match (entry.due, wish) {
            (Some(due), Some(wish)) => Some(due.min(wish)),
            (due, wish) => due.or(wish),
        };
    }

    /// When the next pass is due that is not running.
    #[must_use]
    pub fn next_due(&self) -> Option<BootTime> {
        self.entries.values().filter(|entry| !entry.running).filter_map(|entry| entry.due).min()
    }

    /// Passes that are due and not running.
    #[must_use]
    pub fn depth(&self, now: BootTime) -> usize {
        self.entries.values().filter(|entry| !entry.running && entry.due.is_some_and(|due| due <= now)).count()
    }

    /// How long the oldest due pass has been waiting.
    #[must_use]
    pub fn oldest_age(&self, now: BootTime) -> Duration {
        self.next_due().map_or(Duration::ZERO, |due| now.saturating_duration_since(due))
    }

    /// Passes that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> BootTime {
        BootTime::since_boot(Duration::from_millis(1_000_000 + milliseconds))
    }

    const FAILED: Ended = Ended::Failed { category: Category::Unavailable, least: Duration::ZERO };

    #[test]
    fn an_endpoint_runs_once_at_a_time_and_again_for_what_arrived_meanwhile() {
        let mut queue = Queue::default();
        queue.mark("a", Cause::Row, at(0));
        queue.mark("a", Cause::Row, at(0));
        assert_eq!(queue.take(at(0), 4), ["a"]);
        queue.mark("a", Cause::Row, at(1));
        assert_eq!(queue.take(at(1), 4), Vec::<String>::new());
        queue.ended("a", Ended::Rest, at(2), 0.5);
        assert_eq!(queue.take(at(2), 4), ["a"]);
        queue.ended("a", Ended::Rest, at(3), 0.5);
        assert_eq!(queue.take(at(999_999), 4), Vec::<String>::new());
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn the_limit_holds_and_the_oldest_goes_first() {
        let mut queue = Queue::default();
        queue.mark("b", Cause::Row, at(0));
        queue.mark("a", Cause::Row, at(1));
        queue.mark("c", Cause::Row, at(2));
        assert_eq!(queue.depth(at(5)), 3);
        assert_eq!(queue.oldest_age(at(5)), Duration::from_millis(5));
        assert_eq!(queue.take(at(5), 2), ["b", "a"]);
        assert_eq!(queue.take(at(5), 2), Vec::<String>::new());
        queue.ended("b", Ended::Rest, at(6), 0.0);
        assert_eq!(queue.take(at(6), 2), ["c"]);
        assert_eq!(queue.running(), 2);
    }

    #[test]
    fn failures_wait_longer_each_time_and_noise_does_not_shorten_it() {
        let mut queue = Queue::default();
        queue.mark("a", Cause::Row, at(0));
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..7 {
            assert_eq!(queue.take(at(now), 1), ["a"]);
            queue.ended("a", FAILED, at(now), 0.5);
            queue.mark("a", Cause::Cluster, at(now));
            queue.mark("a", Cause::Timer, at(now));
            let due = queue.next_due().unwrap();
            let wait = due.saturating_duration_since(at(now)).as_millis();
            waits.push(wait);
            now += u64::try_from(wait).unwrap();
        }
        assert_eq!(waits, [500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000]);
        // An edit of the row is tried at once, and starts the count anew.
        assert_eq!(queue.take(at(now), 1), ["a"]);
        queue.mark("a", Cause::Row, at(now));
        queue.ended("a", FAILED, at(now), 0.5);
        assert_eq!(queue.take(at(now), 1), ["a"]);
    }

    #[test]
    fn jitter_and_the_servers_wish_are_kept() {
        let zero = Duration::ZERO;
        assert_eq!(wait_after(Category::Throttled, 1, zero, 0.0), Duration::from_millis(750));
        assert_eq!(wait_after(Category::Throttled, 1, zero, 1.0), Duration::from_millis(1_250));
        assert_eq!(wait_after(Category::Throttled, 1, Duration::from_secs(7), 0.5), Duration::from_secs(7));
        assert_eq!(wait_after(Category::Invalid, u32::MAX, zero, 0.5), Duration::from_secs(300));
    }

    #[test]
    fn a_timer_comes_back_even_when_an_event_came_first() {
        let mut queue = Queue::default();
        queue.mark("a", Cause::Row, at(0));
        assert_eq!(queue.take(at(0), 1), ["a"]);
        queue.ended("a", Ended::Again(Duration::from_secs(15)), at(0), 0.0);
        assert_eq!(queue.next_due(), Some(at(15_000)));
        queue.mark("a", Cause::Cluster, at(100));
        assert_eq!(queue.next_due(), Some(at(150)));
    }

    #[test]
    fn forgotten_endpoints_do_not_come_back() {
        let mut queue = Queue::default();
        queue.mark("a", Cause::Row, at(0));
        queue.mark("b", Cause::Row, at(0));
        assert_eq!(queue.take(at(0), 1), ["a"]);
        queue.mark("a", Cause::Row, at(0));
        queue.forget("a");
        queue.clear();
        assert_eq!(queue.running(), 1);
        queue.ended("a", Ended::Rest, at(1), 0.0);
        assert_eq!(queue.take(at(1), 9), Vec::<String>::new());
        assert_eq!(queue.running(), 0);
    }
}
