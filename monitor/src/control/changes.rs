//! Whether the table is read whole or asked for its changes, and when. Pure: times and answers are arguments.
//!
//! Without a change index the table is read whole every interval. With one it is asked every second which rows have a
//! version from the last two minutes on, and read whole every five minutes, since the index shows neither rows that are gone
//! nor those that a slow clock dates further back. The lower bound is our own clock, never the newest version that was seen:
//! one row dated in the future would hide all others. An entry of the index is a hint: its row is read strongly, and counts
//! as seen only when that read showed this version or a later one.
//!
//! | What changed | Applied within |
//! |---|---|
//! | a row, by a writer whose clock is at most two minutes behind ours, or any time ahead | the query interval and the read |
//! | a row, by a writer whose clock is further behind; a row that is gone; a row with an unknown state word | the full read's interval |
//! | anything while the index is missing, fails, or more than a fifth of the rows change per interval | the reconcile interval |

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gco_runtime::clock::BootTime;
use gco_store::index::{IndexEntry, PartState};
use gco_store::table::ErrorCategory;
use gco_store::time;
use jiff::Timestamp;

use super::rows::Rows;

/// How far the lower bound of a query lies behind our clock. Covers clocks that run behind, and what the index lags.
pub const LOOK_BACK: Duration = Duration::from_secs(120);

/// Fewer rows than these per interval are never "busy": reading them one by one costs about four units a second.
const LEAST_BUSY_ROWS: usize = 60;

/// One over the share of the rows above which the full read is cheaper than reading them one by one.
const BUSY_SHARE: usize = 5;

/// The feed's intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedTimes {
    /// Between two full reads without an index.
    pub reconcile_interval: Duration,
    /// Between two queries of the index.
    pub query_interval: Duration,
    /// Between two full reads with an index, and between two looks whether there is one.
    pub full_read_interval: Duration,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read the whole table.
    FullRead,
    /// Ask the index for versions from here on.
    Query {
        /// Lower bound.
        since: String,
    },
    /// Ask whether there is an index.
    Look,
    /// Nothing for this long.
    Wait(Duration),
}

/// How the table is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Whole, every interval: the index is switched off.
    Off,
    /// Whole, every interval: there is no index that can be used, or it failed in a way that lasts.
    NoIndex,
    /// By the index.
    Index,
    /// Whole for a while: the index did not answer.
    Failed,
    /// Whole for a while: too many rows change.
    Busy,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 5] = [Self::Off, Self::NoIndex, Self::Index, Self::Failed, Self::Busy];

    /// The word for metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NoIndex => "no_index",
            Self::Index => "index",
            Self::Failed => "index_failed",
            Self::Busy => "busy",
        }
    }
}

/// The plan of reads.
#[derive(Debug)]
pub struct ChangeFeed {
    times: FeedTimes,
    mode: Mode,
    /// When a look (without an index) or a query (after a failure) may be tried again.
    try_index_at: BootTime,
    last_full_read: Option<BootTime>,
    last_query: Option<BootTime>,
    /// Entries whose row was read with their version or a later one; only those that the last query showed.
    seen: BTreeSet<IndexEntry>,
    /// Since when rows are counted, and how many were read one by one since.
    counting: (BootTime, usize),
}

impl ChangeFeed {
    /// The plan at start-up; `index` as the table's check told it, `None` when it is switched off.
    #[must_use]
    pub fn new(times: FeedTimes, index: Option<&PartState>, now: BootTime) -> Self {
        let mode = match index {
            None => Mode::Off,
            Some(PartState::Ready) => Mode::Index,
            Some(_) => Mode::NoIndex,
        };
        Self {
            times,
            mode,
            try_index_at: now + times.full_read_interval,
            last_full_read: None,
            last_query: None,
            seen: BTreeSet::new(),
            counting: (now, 0),
        }
    }

    /// How the table is read now.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What to do at `now`; `wall` is the time of day. The first thing is always a full read.
    pub fn next(&mut self, now: BootTime, wall: Timestamp) -> Step {
        let full_read_interval =
            if self.mode == Mode::Index { self.times.full_read_interval } else { self.times.reconcile_interval };
        let full_read_at = self.last_full_read.map_or(now, |last| last + full_read_interval);
        if now >= full_read_at {
            return Step::FullRead;
        }
        let wait = |at: BootTime| Step::Wait(at.min(full_read_at).saturating_duration_since(now));
        match self.mode {
            Mode::Off | Mode::Busy => wait(full_read_at),
            Mode::NoIndex if now >= self.try_index_at => Step::Look,
            Mode::Failed if now >= self.try_index_at => {
                self.mode = Mode::Index;
                self.query(now, wall)
            }
            Mode::NoIndex | Mode::Failed => wait(self.try_index_at),
            Mode::Index => {
                let query_at = self.last_query.map_or(now, |last| last + self.times.query_interval);
                if now >= query_at { self.query(now, wall) } else { wait(query_at) }
            }
        }
    }

    fn query(&mut self, now: BootTime, wall: Timestamp) -> Step {
        self.last_query = Some(now);
        Step::Query { since: time::format(wall.checked_sub(LOOK_BACK).unwrap_or(Timestamp::MIN)) }
    }

    /// A full read that began then has ended, well or not; `changed` rows of `rows` were new to us.
    pub fn full_read_ended(&mut self, began: BootTime, changed: usize, rows: usize) {
        self.last_full_read = Some(began);
        if self.mode == Mode::Busy && !is_busy(changed, rows) {
            self.mode = Mode::Index;
            self.counting = (began, 0);
        }
    }

    /// The table was asked whether there is an index.
    pub fn looked(&mut self, now: BootTime, index: Option<&PartState>) {
        self.try_index_at = now + self.times.full_read_interval;
        if self.mode == Mode::NoIndex && index == Some(&PartState::Ready) {
            self.mode = Mode::Index;
            self.counting = (now, 0);
        }
    }

    /// The index did not answer: the table is read whole, and the index tried again, soon when it may recover by itself.
    pub fn query_failed(&mut self, now: BootTime, category: ErrorCategory) {
        self.seen.clear();
        if category.retryable() {
            self.mode = Mode::Failed;
            self.try_index_at = now + self.times.reconcile_interval;
        } else {
            self.mode = Mode::NoIndex;
            self.try_index_at = now + self.times.full_read_interval;
        }
    }

    /// Which rows must be read, one entry per name: those whose version we neither hold nor have seen.
    pub fn to_read(&mut self, entries: Vec<IndexEntry>, rows: &Rows) -> Vec<IndexEntry> {
        let shown: BTreeSet<IndexEntry> = entries.into_iter().collect();
        self.seen.retain(|entry| shown.contains(entry));
        let mut wanted: BTreeMap<String, String> = BTreeMap::new();
        for entry in shown {
            let held = rows.get(&entry.name);
            if held.is_some_and(|held| held.row.updated_at.as_deref() == Some(entry.updated_at.as_str())) {
                self.seen.insert(entry);
            } else if !self.seen.contains(&entry) {
                // Entries come in order: of several of one name the latest version is the one to wait for.
                wanted.insert(entry.name, entry.updated_at);
            }
        }
        wanted.into_iter().map(|(name, updated_at)| IndexEntry { name, updated_at }).collect()
    }

    /// The row of an entry was read strongly; `found` is its version, `None` when there is no row or it has none.
    pub fn row_read(&mut self, entry: IndexEntry, found: Option<&str>) {
        self.counting.1 += 1;
        if found.is_some_and(|found| is_at_least(found, &entry.updated_at)) {
            self.seen.insert(entry);
        }
    }

    /// All rows of a query have been read. Says `true` when so many change that the table is read whole from now on.
    pub fn query_ended(&mut self, now: BootTime, rows: usize) -> bool {
        let (since, count) = self.counting;
        if self.mode != Mode::Index {
            return false;
        }
        if is_busy(count, rows) {
            self.mode = Mode::Busy;
            self.seen.clear();
            return true;
        }
        if now >= since + self.times.reconcile_interval {
            self.counting = (now, 0);
        }
        false
    }
}

/// Whether more than a fifth of the rows changed, and enough of them to matter.
fn is_busy(changed: usize, rows: usize) -> bool {
    changed > LEAST_BUSY_ROWS && changed.saturating_mul(BUSY_SHARE) > rows
}

/// Whether a version is another or a later one. Versions are times; those that are not are compared as text.
fn is_at_least(found: &str, wanted: &str) -> bool {
    match (time::parse(found), time::parse(wanted)) {
        (Some(found), Some(wanted)) => found >= wanted,
        _ => found >= wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gco_store::wire::{Item, Value};

    const TIMES: FeedTimes = FeedTimes {
        reconcile_interval: Duration::from_secs(15),
        query_interval: Duration::from_secs(1),
        full_read_interval: Duration::from_secs(300),
    };

    fn at(seconds: u64) -> BootTime {
        BootTime::since_boot(Duration::from_secs(seconds))
    }

    fn wall() -> Timestamp {
        "2026-11-29T12:00:00Z".parse().unwrap()
    }

    fn entry(name: &str, updated_at: &str) -> IndexEntry {
        IndexEntry { name: name.to_owned(), updated_at: updated_at.to_owned() }
    }

    fn rows(pairs: &[(&str, &str)]) -> Rows {
        let mut rows = Rows::default();
        let item = |name: &str, updated_at: &str| -> Item {
            [("endpoint_name".to_owned(), Value::from(name)), ("updated_at".to_owned(), Value::from(updated_at))].into()
        };
        rows.take_all(pairs.iter().map(|(name, updated_at)| item(name, updated_at)).collect(), at(0));
        rows
    }

    /// A feed that has made its first full read at 0.
    fn feed(index: Option<PartState>) -> ChangeFeed {
        let mut feed = ChangeFeed::new(TIMES, index.as_ref(), at(0));
        assert_eq!(feed.next(at(0), wall()), Step::FullRead);
        feed.full_read_ended(at(0), 0, 0);
        feed
    }

    fn query() -> Step {
        Step::Query { since: "2026-11-29T11:58:00+00:00".to_owned() }
    }

    #[test]
    fn with_an_index_the_table_is_asked_every_second_and_read_whole_every_five_minutes() {
        let mut feed = feed(Some(PartState::Ready));
        for second in 0..300 {
            assert_eq!(feed.next(at(second), wall()), query(), "at {second} s");
            assert_eq!(feed.next(at(second), wall()), Step::Wait(Duration::from_secs(1)));
            assert!(!feed.query_ended(at(second), 1_000));
        }
        assert_eq!(feed.next(at(300), wall()), Step::FullRead);
    }

    #[test]
    fn without_an_index_the_table_is_read_whole_and_an_index_that_appears_is_used() {
        let mut feed = feed(Some(PartState::Making));
        assert_eq!(feed.next(at(1), wall()), Step::Wait(Duration::from_secs(14)));
        for round in 1..20 {
            assert_eq!(feed.next(at(15 * round), wall()), Step::FullRead);
            feed.full_read_ended(at(15 * round), 0, 10);
        }
        feed.full_read_ended(at(299), 0, 10);
        assert_eq!(feed.next(at(300), wall()), Step::Look);
        feed.looked(at(300), None);
        assert_eq!(feed.next(at(301), wall()), Step::Wait(Duration::from_secs(13)));
        feed.full_read_ended(at(599), 0, 10);
        assert_eq!(feed.next(at(600), wall()), Step::Look);
        feed.looked(at(600), Some(&PartState::Ready));
        assert_eq!((feed.next(at(600), wall()), feed.mode()), (query(), Mode::Index));
    }

    #[test]
    fn an_index_that_is_switched_off_is_never_asked_for() {
        let mut feed = feed(None);
        for second in 1..3_000 {
            match feed.next(at(second), wall()) {
                Step::FullRead => feed.full_read_ended(at(second), 0, 10),
                step => assert!(matches!(step, Step::Wait(_)), "{step:?}"),
            }
        }
    }

    #[test]
    fn a_version_is_read_once_and_one_dated_ahead_hides_no_other() {
        let mut feed = feed(Some(PartState::Ready));
        let rows = rows(&[("held", "2026-11-29T11:59:00+00:00"), ("old", "2026-11-29T11:00:00+00:00")]);
        let ahead = entry("ahead", "2026-11-29T13:00:00+00:00");
        let edited = entry("old", "2026-11-29T11:59:30+00:00");
        let shown = || vec![ahead.clone(), entry("held", "2026-11-29T11:59:00+00:00"), edited.clone()];
        assert_eq!(feed.to_read(shown(), &rows), [ahead.clone(), edited.clone()]);
        feed.row_read(ahead.clone(), Some("2026-11-29T13:00:00+00:00"));
        feed.row_read(edited.clone(), Some("2026-11-29T11:59:30.000001+00:00"));
        assert_eq!(feed.to_read(shown(), &rows), []);
        assert_eq!(feed.next(at(5), wall()), query(), "the bound is the clock's, whatever was seen");
    }

    #[test]
    fn a_read_that_shows_an_older_version_or_no_row_is_made_again() {
        let mut feed = feed(Some(PartState::Ready));
        let rows = Rows::default();
        let shown = entry("chat", "2026-11-29T11:59:30+00:00");
        for found in [Some("2026-11-29T11:59:29.999999+00:00"), None, Some("")] {
            assert_eq!(feed.to_read(vec![shown.clone()], &rows), std::slice::from_ref(&shown));
            feed.row_read(shown.clone(), found);
        }
        assert_eq!(feed.to_read(vec![shown.clone()], &rows), std::slice::from_ref(&shown));
        feed.row_read(shown.clone(), Some("2026-11-29T11:59:30+00:00"));
        assert_eq!(feed.to_read(vec![shown.clone()], &rows), []);
        // What the index does not show any more is forgotten: nothing grows.
        assert_eq!(feed.to_read(Vec::new(), &rows), []);
        assert!(feed.seen.is_empty());
    }

    #[test]
    fn of_two_versions_of_one_name_the_later_one_is_waited_for() {
        let mut feed = feed(Some(PartState::Ready));
        let (early, late) = (entry("a", "2026-11-29T11:59:01+00:00"), entry("a", "2026-11-29T11:59:02+00:00"));
        assert_eq!(feed.to_read(vec![late.clone(), early.clone()], &Rows::default()), [late]);
    }

    #[test]
    fn an_index_that_fails_is_done_without_until_it_may_answer_again() {
        let mut feed = feed(Some(PartState::Ready));
        assert_eq!(feed.next(at(20), wall()), query());
        feed.query_failed(at(20), ErrorCategory::Throttled);
        // The last full read is more than the reconcile interval ago.
        assert_eq!(feed.next(at(20), wall()), Step::FullRead);
        feed.full_read_ended(at(20), 0, 10);
        assert_eq!(feed.next(at(21), wall()), Step::Wait(Duration::from_secs(14)));
        assert_eq!(feed.next(at(35), wall()), Step::FullRead);
        feed.full_read_ended(at(35), 0, 10);
        assert_eq!((feed.next(at(35), wall()), feed.mode()), (query(), Mode::Index));
        feed.query_failed(at(36), ErrorCategory::Forbidden);
        assert_eq!(feed.mode(), Mode::NoIndex);
        feed.full_read_ended(at(330), 0, 10);
        assert_eq!(feed.next(at(335), wall()), Step::Wait(Duration::from_secs(1)));
        assert_eq!(feed.next(at(336), wall()), Step::Look);
    }

    #[test]
    fn when_more_than_a_fifth_of_the_rows_change_the_table_is_read_whole_until_fewer_do() {
        let mut feed = feed(Some(PartState::Ready));
        let read = |feed: &mut ChangeFeed, count: usize| {
            for number in 0..count {
                feed.row_read(entry(&format!("e{number}"), "1"), Some("1"));
            }
        };
        // A fifth of 1,000 is not more than a fifth, and the count starts anew each interval.
        read(&mut feed, 200);
        assert!(!feed.query_ended(at(15), 1_000));
        read(&mut feed, 200);
        assert!(!feed.query_ended(at(16), 1_000));
        read(&mut feed, 1);
        assert!(feed.query_ended(at(17), 1_000));
        assert_eq!((feed.next(at(17), wall()), feed.mode()), (Step::FullRead, Mode::Busy));
        feed.full_read_ended(at(17), 201, 1_000);
        assert_eq!(feed.mode(), Mode::Busy);
        feed.full_read_ended(at(32), 200, 1_000);
        assert_eq!((feed.next(at(33), wall()), feed.mode()), (query(), Mode::Index));
        // All of a few rows are cheap to read one by one.
        read(&mut feed, 60);
        assert!(!feed.query_ended(at(34), 60));
    }
}
