//! Two small models whose every state is visited. They call the product's own pure functions: who may take the Lease and
//! until when a claim lasts; what an absence observation counts, and what a row says to each write. With a fence taken out
//! the checker must find the counterexample that the fence is there for.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use gco_monitor::identity::LeaderMark;
use gco_monitor::intent::CleanUp;
use gco_monitor::leadership::decide::{Action, Memory, Mine, claim_ends, decide, next_term, time_for_a_change};
use gco_monitor::leadership::record::{LeaseRecord, acquired, created, renewed};
use gco_runtime::clock::BootTime;
use gco_store::row::{DesiredState, EndpointRow};
use gco_store::status::{RegionEntry, State as RegionState};
use gco_store::table::Outcome;
use gco_store::transition::{self, CreateRequest, StatusAuthority, Transition};
use gco_store::wire::{Item, Value};
use gco_tests::size::Size;
use jiff::Timestamp;
use serde_json::{Value as Json, json};
use stateright::{Checker, HasDiscoveries, Model, Property};

const SECOND: Duration = Duration::from_secs(1);

/// The Lease's duration in seconds, and the claim's margin and minimum: small numbers with the relations of the real ones.
const LEASE_SECONDS: u64 = 3;
const MARGIN: Duration = SECOND;
const MINIMUM: Duration = SECOND;
/// Seconds that a run lasts: long enough for one take-over after an expiry, and in full size for what follows it.
fn horizon() -> u64 {
    Size::asked().choose(4, 6)
}

/// Which fence is taken out of the leadership model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WithoutFence {
    None,
    /// A write to an object lands whatever its version is.
    ObjectVersion,
    /// The claim is counted from the answer to a renewal, not from when it was sent.
    ClaimFromSending,
    /// A Lease of somebody else is taken without waiting for it to expire.
    Expiry,
}

#[derive(Clone, Debug)]
struct Leadership {
    without: WithoutFence,
    horizon: u64,
}

/// A message to the server; it arrives at any later time, or never.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    /// A write of the Lease.
    Lease { from: usize, body: String, of: u64, sent_at: u64, term: u64, takes: bool },
    /// A write of the object.
    Object { from: usize, term: u64, of: u64 },
}

impl std::fmt::Debug for Message {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lease { from, sent_at, term, takes, .. } => {
                let what = if *takes { "takes" } else { "renews" };
                write!(formatter, "{} {what} the Lease in term {term}, sent at {sent_at} s", HOLDERS[*from])
            }
            Self::Object { from, term, of } => {
                write!(formatter, "{} writes version {of} of the object in term {term}", HOLDERS[*from])
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Monitor {
    /// The Lease as last seen, and since when.
    seen: Option<(String, u64)>,
    /// Epoch, term, when sent, whether answered.
    mine: Option<(String, u64, u64, bool)>,
    /// When the claim of this term ends.
    claim: Option<(u64, u64)>,
    /// The object's version as its cache has it.
    cached: u64,
    /// When it last looked at the Lease, which it does at most once a second.
    looked: Option<u64>,
    /// The term in which it began to write the object. One write per term, delivered at any later time, is all it takes.
    begun: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cluster {
    now: u64,
    /// Version and body of the Lease.
    lease: Option<(u64, String)>,
    /// Version of the object, term on it.
    object: (u64, u64),
    /// A term was written over a newer one.
    overwritten: bool,
    flying: BTreeSet<Message>,
    monitors: [Monitor; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Happens {
    Second,
    Look(usize),
    Refresh(usize),
    Begin(usize),
    Arrives { message: Message, answered: bool },
    Lost(Message),
}

const HOLDERS: [&str; 2] = ["one", "other"];

fn boot(seconds: u64) -> BootTime {
    BootTime::since_boot(Duration::from_secs(1_000 + seconds))
}

fn wall(seconds: u64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + i64::try_from(seconds).unwrap()).unwrap()
}

fn record(version: u64, body: &str) -> LeaseRecord {
    thread_local! {
        // The same few Leases are looked at in every state.
        static READ: RefCell<HashMap<(u64, String), LeaseRecord>> = RefCell::default();
    }
    READ.with_borrow_mut(|read| {
        let parse = || {
            let mut body: Json = serde_json::from_str(body).unwrap();
            body["metadata"]["uid"] = json!("u");
            body["metadata"]["resourceVersion"] = json!(version.to_string());
            LeaseRecord::parse(body).unwrap()
        };
        read.entry((version, body.to_owned())).or_insert_with(parse).clone()
    })
}

fn plain(mut body: Json) -> String {
    body["metadata"].as_object_mut().unwrap().remove("uid");
    body["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    body.to_string()
}

impl Monitor {
    fn memory(&self) -> Memory {
        let seen = self.seen.as_ref().map(|(body, since)| (record(0, body).fingerprint(), boot(*since)));
        let mine = self.mine.as_ref().map(|(epoch, term, sent_at, answered)| Mine {
            mark: LeaderMark { epoch: epoch.clone(), term: *term },
            sent_at: boot(*sent_at),
            answered: *answered,
        });
        Memory { seen, mine }
    }

    fn may_begin(&self, now: u64) -> bool {
        self.claim.is_some_and(|(ends, _)| time_for_a_change(boot(ends), boot(now), MINIMUM).is_some())
    }
}

impl Leadership {
    fn lease_duration(&self) -> Duration {
        SECOND * u32::try_from(LEASE_SECONDS).unwrap()
    }

    /// One look at the Lease and what follows from it; `None`: nothing.
    fn look(&self, cluster: &mut Cluster, who: usize) {
        let now = cluster.now;
        let found = cluster.lease.as_ref().map(|(version, body)| record(*version, body));
        let monitor = &mut cluster.monitors[who];
        match &cluster.lease {
            None => monitor.seen = None,
            Some((_, body)) => {
                let same =
                    |known: &str| known == body || record(0, known).fingerprint() == record(0, body).fingerprint();
                if monitor.seen.as_ref().is_none_or(|(known, _)| !same(known)) {
                    monitor.seen = Some((body.clone(), now));
                }
            }
        }
        let mut decided = decide(found.as_ref(), HOLDERS[who], &monitor.memory(), self.lease_duration(), boot(now));
        if self.without == WithoutFence::Expiry && matches!(decided, Action::Wait(_)) {
            decided = Action::Acquire;
        }
        let mut send = |body: Json, of: u64, term: u64, takes: bool| {
            cluster.flying.insert(Message::Lease { from: who, body: plain(body), of, sent_at: now, term, takes });
        };
        match (decided, found) {
            (Action::Create | Action::Acquire, found) => {
                let transitions = found.as_ref().map_or(0, |found| found.transitions);
                let term = next_term(transitions, cluster.object.1);
                let mark = LeaderMark { epoch: format!("{}-{term}-{now}", HOLDERS[who]), term };
                let of = found.as_ref().map_or(0, |found| found.resource_version.parse().unwrap());
                let duration = self.lease_duration();
                let body = match &found {
                    None => created("n", HOLDERS[who], &mark, duration, wall(now)),
                    Some(found) => acquired(found, HOLDERS[who], &mark, duration, wall(now)),
                };
                monitor.mine = Some((mark.epoch, term, now, false));
                send(body, of, term, true);
            }
            (Action::Renew, Some(found)) => {
                let term = monitor.mine.as_ref().map_or(0, |mine| mine.1);
                let of = found.resource_version.parse().unwrap();
                send(renewed(&found, self.lease_duration(), wall(now)), of, term, false);
            }
            (Action::Confirm, _) => {
                if let Some((_, term, sent_at, answered)) = &mut monitor.mine {
                    *answered = true;
                    let (term, sent_at) = (*term, *sent_at);
                    self.hold(monitor, term, sent_at, now);
                }
            }
            (Action::Lost, _) => {
                monitor.mine = None;
                monitor.claim = None;
            }
            _ => {}
        }
    }

    fn hold(&self, monitor: &mut Monitor, term: u64, sent_at: u64, now: u64) {
        let from = if self.without == WithoutFence::ClaimFromSending { now } else { sent_at };
        let ends = claim_ends(boot(from), self.lease_duration(), MARGIN);
        let ends = ends.saturating_duration_since(boot(0)).as_secs();
        let known = monitor.claim.filter(|(_, known)| *known == term).map_or(0, |(ends, _)| ends);
        monitor.claim = Some((ends.max(known), term));
    }

    fn arrives(&self, cluster: &mut Cluster, message: &Message, answered: bool) {
        let now = cluster.now;
        match message {
            Message::Lease { from, body, of, sent_at, term, takes } => {
                let version = cluster.lease.as_ref().map_or(0, |(version, _)| *version);
                let fits = version == *of;
                if fits {
                    cluster.lease = Some((version + 1, body.clone()));
                }
                let monitor = &mut cluster.monitors[*from];
                if !answered {
                    return;
                }
                let about_this =
                    monitor.mine.as_ref().is_some_and(|mine| mine.1 == *term && (!takes || mine.2 == *sent_at));
                if !about_this {
                    return;
                }
                if fits {
                    monitor.seen = Some((body.clone(), now));
                    if let Some(mine) = &mut monitor.mine {
                        mine.3 = true;
                        mine.2 = *sent_at;
                    }
                    self.hold(monitor, *term, *sent_at, now);
                } else if *takes {
                    monitor.mine = None;
                }
            }
            Message::Object { from, term, of } => {
                let (version, on_it) = cluster.object;
                if version != *of && self.without != WithoutFence::ObjectVersion {
                    return;
                }
                cluster.overwritten |= *term < on_it;
                cluster.object = (version + 1, *term);
                if answered {
                    cluster.monitors[*from].cached = version + 1;
                }
            }
        }
    }
}

impl Model for Leadership {
    type State = Cluster;
    type Action = Happens;

    fn init_states(&self) -> Vec<Cluster> {
        vec![Cluster {
            now: 0,
            lease: None,
            object: (1, 0),
            overwritten: false,
            flying: BTreeSet::new(),
            monitors: [Monitor { cached: 1, ..Monitor::default() }, Monitor { cached: 1, ..Monitor::default() }],
        }]
    }

    fn actions(&self, cluster: &Cluster, actions: &mut Vec<Happens>) {
        if cluster.now < self.horizon {
            actions.push(Happens::Second);
        }
        let is_lease = |message: &&Message| matches!(message, Message::Lease { .. });
        for (who, monitor) in cluster.monitors.iter().enumerate() {
            let of_mine = |message: &&Message| match message {
                Message::Lease { from, .. } | Message::Object { from, .. } => *from == who,
            };
            let mine: Vec<&Message> = cluster.flying.iter().filter(of_mine).collect();
            // The two are alike: the one that looks first is called the first.
            let first = &cluster.monitors[0];
            let in_turn = who == 0 || first.looked.is_some();
            if in_turn && !mine.iter().any(is_lease) && monitor.looked != Some(cluster.now) {
                actions.push(Happens::Look(who));
            }
            let term = monitor.claim.map_or(0, |(_, term)| term);
            if monitor.begun < term && monitor.may_begin(cluster.now) {
                actions.push(Happens::Begin(who));
                if monitor.cached != cluster.object.0 {
                    actions.push(Happens::Refresh(who));
                }
            }
        }
        for message in &cluster.flying {
            actions.push(Happens::Arrives { message: message.clone(), answered: true });
            // Whether the writer of an object learns what became of it changes nothing here: its cache tells it too. A lost
            // message of that kind is one that has not arrived yet.
            if is_lease(&message) {
                actions.push(Happens::Arrives { message: message.clone(), answered: false });
            }
            // Its sender gives it up after a while.
            if matches!(message, Message::Lease { sent_at, .. } if *sent_at < cluster.now) {
                actions.push(Happens::Lost(message.clone()));
            }
        }
    }

    fn next_state(&self, before: &Cluster, action: Happens) -> Option<Cluster> {
        let mut cluster = before.clone();
        match action {
            Happens::Second => cluster.now += 1,
            Happens::Look(who) => {
                cluster.monitors[who].looked = Some(cluster.now);
                self.look(&mut cluster, who);
            }
            Happens::Refresh(who) => cluster.monitors[who].cached = cluster.object.0,
            Happens::Begin(who) => {
                let monitor = &cluster.monitors[who];
                let term = monitor.claim?.1;
                cluster.flying.insert(Message::Object { from: who, term, of: monitor.cached });
                cluster.monitors[who].begun = term;
            }
            Happens::Arrives { message, answered } => {
                cluster.flying.remove(&message);
                self.arrives(&mut cluster, &message, answered);
            }
            Happens::Lost(message) => {
                cluster.flying.remove(&message);
            }
        }
        (cluster != *before).then_some(cluster)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("two claims never hold at once", |_, cluster: &Cluster| {
                !cluster.monitors.iter().all(|monitor| monitor.may_begin(cluster.now))
            }),
            Property::always("no older term is written over a newer one", |_, cluster: &Cluster| !cluster.overwritten),
            Property::sometimes("the second leader writes the object", |_, cluster: &Cluster| cluster.object.1 == 2),
        ]
    }

    fn within_boundary(&self, cluster: &Cluster) -> bool {
        // A third leader repeats what the second one met.
        cluster.object.0 <= 3
            && cluster.lease.as_ref().is_none_or(|(version, _)| *version <= Size::asked().choose(3, 4))
    }
}

fn without(fence: WithoutFence) -> Leadership {
    Leadership { without: fence, horizon: horizon() }
}

/// The properties that must hold in every state.
const ALWAYS: [&str; 2] = ["two claims never hold at once", "no older term is written over a newer one"];

#[test]
fn claims_never_overlap_and_no_older_term_writes_over_a_newer_one() {
    // In small size the states that are reached first; in full size all of them.
    const FIRST: usize = 60_000;
    let full = Size::asked() == Size::Full;
    let builder = without(WithoutFence::None).checker().threads(2);
    let builder = if full { builder } else { builder.target_state_count(FIRST) };
    let checker = builder.spawn_bfs().join();
    let (states, distinct) = (checker.state_count(), checker.unique_state_count());
    println!("leadership: {states} states, {distinct} distinct, all of them: {}", checker.is_done() && full);
    if full {
        checker.assert_properties();
    }
    for property in ALWAYS {
        checker.assert_no_discovery(property);
    }
}

/// The shortest way to a violation, in words.
fn counterexample<M>(model: M, property: &'static str) -> String
where
    M: Model + Send + Sync + 'static,
    M::State: Hash + Send + Sync + std::fmt::Debug + Clone + PartialEq,
    M::Action: Send + Sync + std::fmt::Debug + Clone + PartialEq,
{
    let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = model.checker().threads(2).finish_when(wanted).spawn_bfs().join();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("no counterexample to: {property}"));
    let steps: Vec<String> = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
    format!("{property}: {} steps: {}", steps.len(), steps.join("; "))
}

#[test]
fn without_the_objects_version_an_old_leader_writes_over_the_new_one() {
    let property = "no older term is written over a newer one";
    println!("{}", counterexample(without(WithoutFence::ObjectVersion), property));
}

#[test]
fn a_claim_counted_from_the_answer_overlaps_with_the_next() {
    let property = "two claims never hold at once";
    println!("{}", counterexample(without(WithoutFence::ClaimFromSending), property));
}

#[test]
fn a_lease_taken_before_it_expired_makes_two_leaders() {
    let property = "two claims never hold at once";
    println!("{}", counterexample(without(WithoutFence::Expiry), property));
}

/// Which fence is taken out of the removal model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WithoutGuard {
    None,
    /// An observation that finds something does not start the count anew.
    Reset,
    /// A write to the row happens whatever the row says.
    Condition,
}

const HERE: &str = "here";
const THERE: &str = "there";

/// A row that can be a part of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row(Option<Item>);

impl Hash for Row {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        format!("{:?}", self.0).hash(hasher);
    }
}

/// A monitor of the region: what it read, and what it saw since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Observer {
    read: Row,
    /// What its look at the cluster found, if it looked since it read.
    found_nothing: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fleet {
    row: Row,
    tokens: u8,
    writes: u8,
    /// Something of the endpoint is in the region.
    present: bool,
    /// How often something came back: a write of a deposed leader that arrives late.
    came_back: u8,
    observers: [Observer; 2],
    /// What the accepted observations of this deletion found, oldest first; at most the last two.
    accepted: Vec<bool>,
    /// A row was purged that was not deleted, or not acknowledged by every region.
    purged_alive: bool,
}

#[derive(Clone, Debug)]
struct Removal {
    without: WithoutGuard,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Occurs {
    Delete,
    CreateAgain,
    Goes,
    ComesBack,
    Reads(usize),
    Looks(usize),
    Reports(usize),
    Purges(usize),
    ElsewhereAcknowledges,
}

/// Writes to the row in a run.
const MOST_WRITES: u8 = 8;

impl Removal {
    fn now(fleet: &Fleet) -> Timestamp {
        wall(u64::from(fleet.writes))
    }

    fn row(row: &Row) -> Option<EndpointRow> {
        row.0.clone().and_then(|item| EndpointRow::parse(item).ok())
    }

    fn token(fleet: &mut Fleet) -> String {
        fleet.tokens += 1;
        format!("t{}", fleet.tokens)
    }

    /// Executes a transition; returns whether it was applied.
    fn execute(&self, fleet: &mut Fleet, transition: &Transition) -> bool {
        let current = fleet.row.0.clone();
        let applied = if self.without == WithoutGuard::Condition {
            // A row that is gone takes no change, only a whole new row.
            transition.write.apply(current).map(Outcome::Applied)
        } else {
            transition.evaluate(current)
        };
        let Ok(Outcome::Applied(after)) = applied else { return false };
        fleet.row = Row(after);
        fleet.writes += 1;
        true
    }

    fn create(&self, fleet: &mut Fleet) {
        let request = CreateRequest {
            name: "chat".to_owned(),
            spec: Value::from_plain_json("spec", &json!({"image": "a:1"})).unwrap(),
            target_regions: vec![HERE.to_owned(), THERE.to_owned()],
            namespace: transition::NAMESPACE.to_owned(),
            labels: std::collections::BTreeMap::new(),
            created_by: None,
        };
        let now = Self::now(fleet);
        let mut tokens: Vec<String> = (0..8).map(|_| Self::token(fleet)).collect();
        let transition = transition::create(&request, now, &mut || tokens.pop().unwrap()).unwrap();
        if self.execute(fleet, &transition) {
            fleet.present = true;
            fleet.accepted.clear();
        }
    }

    fn clean_up(row: &EndpointRow) -> Option<CleanUp> {
        (row.desired_state == DesiredState::Deleted).then_some(())?;
        Some(CleanUp::Deleted {
            lifecycle_id: row.lifecycle_id.clone()?,
            deletion_generation: row.deletion_generation.clone()?,
        })
    }

    fn acknowledgement(row: &EndpointRow, region: &str, count: u32, now: Timestamp) -> Option<Transition> {
        let authority = StatusAuthority::Deletion {
            lifecycle_id: row.lifecycle_id.clone()?,
            deletion_generation: row.deletion_generation.clone()?,
        };
        let state = if count >= 2 { RegionState::Deleted } else { RegionState::Deleting };
        let mut entry = RegionEntry::new(state);
        entry.absence_observations = Some(count);
        transition::write_region_status(row, region, &entry, &authority, now).ok()
    }

    fn report(&self, fleet: &mut Fleet, who: usize) -> Option<()> {
        let row = Self::row(&fleet.observers[who].read)?;
        let found_nothing = fleet.observers[who].found_nothing.take()?;
        let clean_up = Self::clean_up(&row)?;
        let count = if self.without == WithoutGuard::Reset && !found_nothing {
            clean_up.counted_absences(&row, HERE)
        } else {
            clean_up.absences_after(&row, HERE, found_nothing)
        };
        let transition = Self::acknowledgement(&row, HERE, count, Self::now(fleet))?;
        if self.execute(fleet, &transition) {
            fleet.accepted.push(found_nothing);
            if fleet.accepted.len() > 2 {
                fleet.accepted.remove(0);
            }
            fleet.observers[who].read = fleet.row.clone();
        }
        Some(())
    }

    fn purge(&self, fleet: &mut Fleet, who: usize) -> Option<()> {
        let row = Self::row(&fleet.observers[who].read)?;
        let transition = transition::purge(&row)?;
        let before = Self::row(&fleet.row);
        let good = before.is_some_and(|row| {
            row.desired_state == DesiredState::Deleted && row.acknowledged(HERE) && row.acknowledged(THERE)
        });
        if self.execute(fleet, &transition) {
            fleet.purged_alive |= !good;
        }
        Some(())
    }
}

impl Model for Removal {
    type State = Fleet;
    type Action = Occurs;

    fn init_states(&self) -> Vec<Fleet> {
        let nothing = || Observer { read: Row(None), found_nothing: None };
        let mut fleet = Fleet {
            row: Row(None),
            tokens: 0,
            writes: 0,
            present: false,
            came_back: 0,
            observers: [nothing(), nothing()],
            accepted: Vec::new(),
            purged_alive: false,
        };
        self.create(&mut fleet);
        vec![fleet]
    }

    fn actions(&self, fleet: &Fleet, actions: &mut Vec<Occurs>) {
        let row = Self::row(&fleet.row);
        let deleted = row.as_ref().is_some_and(|row| row.desired_state == DesiredState::Deleted);
        if fleet.present && deleted {
            actions.push(Occurs::Goes);
        }
        if !fleet.present && fleet.came_back < 1 && deleted {
            actions.push(Occurs::ComesBack);
        }
        for who in 0..2 {
            if fleet.observers[who].read != fleet.row {
                actions.push(Occurs::Reads(who));
            }
            let read = Self::row(&fleet.observers[who].read);
            if fleet.observers[who].found_nothing.is_none()
                && read.as_ref().and_then(Self::clean_up).is_some()
                && !read.as_ref().is_some_and(|row| row.acknowledged(HERE))
            {
                actions.push(Occurs::Looks(who));
            }
            if fleet.writes < MOST_WRITES && fleet.observers[who].found_nothing.is_some() {
                actions.push(Occurs::Reports(who));
            }
            if fleet.writes < MOST_WRITES && read.as_ref().and_then(transition::purge).is_some() {
                actions.push(Occurs::Purges(who));
            }
        }
        if fleet.writes >= MOST_WRITES {
            return;
        }
        match row {
            None => actions.push(Occurs::CreateAgain),
            Some(row) if deleted && !row.acknowledged(THERE) => actions.push(Occurs::ElsewhereAcknowledges),
            Some(_) if !deleted => actions.push(Occurs::Delete),
            Some(_) => {}
        }
    }

    fn next_state(&self, before: &Fleet, action: Occurs) -> Option<Fleet> {
        let mut fleet = before.clone();
        match action {
            Occurs::Delete => {
                let row = Self::row(&fleet.row)?;
                let now = Self::now(&fleet);
                let token = Self::token(&mut fleet);
                let mut token = || token.clone();
                let transition =
                    transition::set_desired_state(&row, DesiredState::Deleted, None, now, &mut token).ok()?;
                if self.execute(&mut fleet, &transition) {
                    fleet.accepted.clear();
                }
            }
            Occurs::CreateAgain => self.create(&mut fleet),
            Occurs::Goes => fleet.present = false,
            Occurs::ComesBack => {
                fleet.present = true;
                fleet.came_back += 1;
            }
            Occurs::Reads(who) => {
                fleet.observers[who] = Observer { read: fleet.row.clone(), found_nothing: None };
            }
            Occurs::Looks(who) => fleet.observers[who].found_nothing = Some(!fleet.present),
            Occurs::Reports(who) => self.report(&mut fleet, who)?,
            Occurs::Purges(who) => self.purge(&mut fleet, who)?,
            Occurs::ElsewhereAcknowledges => {
                let row = Self::row(&fleet.row)?;
                let transition = Self::acknowledgement(&row, THERE, 2, Self::now(&fleet))?;
                self.execute(&mut fleet, &transition);
            }
        }
        (fleet != *before).then_some(fleet)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "an acknowledgement follows two observations in a row that found nothing",
                |_, fleet: &Fleet| {
                    let acknowledged = Self::row(&fleet.row).is_some_and(|row| row.acknowledged(HERE));
                    !acknowledged || fleet.accepted == [true, true]
                },
            ),
            Property::always("only an acknowledged deletion is purged", |_, fleet: &Fleet| !fleet.purged_alive),
            Property::sometimes("the row is purged", |_, fleet: &Fleet| fleet.row.0.is_none()),
            Property::sometimes("a new endpoint of the same name lives", |_, fleet: &Fleet| {
                fleet.tokens > 9 && Self::row(&fleet.row).is_some_and(|row| row.desired_state != DesiredState::Deleted)
            }),
        ]
    }
}

#[test]
fn absence_is_acknowledged_and_rows_are_purged_only_on_proof() {
    let checker = Removal { without: WithoutGuard::None }.checker().threads(2).spawn_bfs().join();
    println!("removal: {} states, {} distinct", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn without_the_reset_an_endpoint_that_is_still_there_is_acknowledged() {
    let property = "an acknowledgement follows two observations in a row that found nothing";
    println!("{}", counterexample(Removal { without: WithoutGuard::Reset }, property));
}

#[test]
fn without_conditions_on_the_row_a_new_endpoint_is_purged() {
    let property = "only an acknowledged deletion is purged";
    println!("{}", counterexample(Removal { without: WithoutGuard::Condition }, property));
}
