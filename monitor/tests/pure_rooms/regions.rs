//! Every order of what people do to an endpoint's regions and of what two regions' monitors do meanwhile, stale writers
//! included: all states that can be reached, each of them judged.
//!
//! People create, add and remove a region, delete, and declare a region gone; monitors decide with the real `decide` and write
//! with the real transitions. The clusters are reduced to one fact each: whose objects they hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gco_monitor::identity::RowIdentity;
use gco_monitor::intent::{CleanUp, Intent};
use gco_store::row::{DesiredState, EndpointRow, TERMINAL_OBSERVATIONS};
use gco_store::status::{RegionEntry, State};
use gco_store::table::Outcome;
use gco_store::transition::{self, CreateRequest, Declaration, StatusAuthority, Transition};
use gco_store::wire::{Item, Value};
use jiff::Timestamp;

use super::support::{NAMESPACE, decide_in};

const EAST: &str = "us-east-1";
const WEST: &str = "eu-west-1";
const BOTH: [&str; 2] = [EAST, WEST];
/// Passes of both monitors after which everything must have come to its end: two sweeps, two hand-offs, a purge and a few more.
const FAIR_ROUNDS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Create,
    Add,
    Remove,
    Delete,
    DeclareAbsent,
    /// A pass that sees the row as it is.
    Pass(&'static str),
    /// A status write by a monitor that decided on the row before the last change.
    Stale(&'static str),
}

const ACTS: [Act; 9] = [
    Act::Create,
    Act::Add,
    Act::Remove,
    Act::Delete,
    Act::DeclareAbsent,
    Act::Pass(EAST),
    Act::Pass(WEST),
    Act::Stale(EAST),
    Act::Stale(WEST),
];

/// The table, two clusters, and what a slow monitor last read.
#[derive(Clone, Debug, Default)]
struct World {
    row: Option<Item>,
    before: Option<Item>,
    objects: BTreeMap<&'static str, RowIdentity>,
    /// Of the objects in the west nobody promises anything any more.
    declared: bool,
    minted: u64,
    seconds: i64,
}

impl World {
    fn row(&self) -> Option<EndpointRow> {
        self.row.clone().map(|item| EndpointRow::parse(item).unwrap())
    }

    fn now(&mut self) -> Timestamp {
        self.seconds += 1;
        Timestamp::from_second(1_800_000_000 + self.seconds).unwrap()
    }

    fn token(&mut self) -> String {
        self.minted += 1;
        format!("{:064x}", self.minted)
    }

    /// Executes as a table does; returns whether it was applied.
    fn execute(&mut self, transition: &Transition) -> bool {
        match transition.evaluate(self.row.clone()).unwrap() {
            Outcome::Applied(row) => {
                self.before = std::mem::replace(&mut self.row, row);
                true
            }
            Outcome::Refused(_) => false,
        }
    }

    fn act(&mut self, act: Act) {
        let now = self.now();
        let row = self.row();
        let mut tokens = [self.token(), self.token(), self.token()].into_iter();
        let mut token = || tokens.next().unwrap();
        let transition = match (act, row) {
            (Act::Create, None) => {
                let request = CreateRequest {
                    name: "chat".to_owned(),
                    spec: Value::Map(Item::from([("image".to_owned(), Value::from("x:1"))])),
                    target_regions: BOTH.map(str::to_owned).to_vec(),
                    namespace: NAMESPACE.to_owned(),
                    labels: BTreeMap::new(),
                    created_by: None,
                };
                self.declared = false;
                transition::create(&request, now, &mut token).ok()
            }
            (Act::Add, Some(row)) => {
                transition::update_target_regions(&row, &BOTH.map(str::to_owned), now, &mut token).ok()
            }
            (Act::Remove, Some(row)) => {
                transition::update_target_regions(&row, &[EAST.to_owned()], now, &mut token).ok()
            }
            (Act::Delete, Some(row)) if row.desired_state != DesiredState::Deleted => {
                transition::set_desired_state(&row, DesiredState::Deleted, None, now, &mut token).ok()
            }
            (Act::DeclareAbsent, Some(row)) if !row.declared_absent(WEST) => {
                let word = Declaration { by: "ada".to_owned(), reason: "gone".to_owned() };
                let declared = transition::declare_absent(&row, WEST, &word, now).ok();
                self.declared |= declared.is_some();
                declared
            }
            (Act::Pass(region), Some(_)) => return self.pass(region),
            (Act::Stale(region), Some(_)) => return self.stale(region),
            _ => None,
        };
        if let Some(transition) = transition {
            assert!(self.execute(&transition), "nobody else is there: {act:?}");
        }
    }

    /// One pass: mutations come after a strong read, so they are never stale.
    fn pass(&mut self, region: &'static str) {
        let Some(row) = self.row() else { return };
        let intent = decide_in(&row, region);
        match &intent {
            Intent::Serve { identity, .. } => match self.objects.get(region) {
                Some(held) if held == identity => {}
                // Hand-off: what is of an earlier life or generation goes first.
                Some(_) => {
                    self.objects.remove(region);
                    return;
                }
                None => {
                    self.objects.insert(region, identity.clone());
                }
            },
            Intent::Remove { .. } => {
                self.objects.remove(region);
            }
            Intent::AwaitPurge => {
                if let Some(purge) = transition::purge(&row) {
                    assert!(self.execute(&purge));
                }
                return;
            }
            _ => {}
        }
        if let Some(write) = self.status(&row, region, &intent) {
            assert!(self.execute(&write), "{region} sees the row as it is: {intent:?}");
        }
        let fresh = self.row();
        if let (Intent::Serve { .. }, Some(fresh)) = (&intent, fresh)
            && fresh.desired_state == DesiredState::Deploying
        {
            let now = self.now();
            let promote = transition::promote(&fresh, now).unwrap();
            assert!(self.execute(&promote));
        }
    }

    /// A status write that was decided on the row before the last change. Whether the table takes it or not, nothing that is
    /// judged below may break.
    fn stale(&mut self, region: &'static str) {
        let Some(before) = self.before.clone() else { return };
        let before = EndpointRow::parse(before).unwrap();
        let intent = decide_in(&before, region);
        if let Some(write) = self.status(&before, region, &intent) {
            self.execute(&write);
        }
    }

    /// The status write of a region, as its monitor would build it.
    fn status(&mut self, row: &EndpointRow, region: &'static str, intent: &Intent) -> Option<Transition> {
        let (authority, mut entry) = match intent {
            Intent::Serve { identity, .. } => (live(identity), RegionEntry::new(State::Running)),
            Intent::Remove { clean_up, .. } => {
                let authority = match clean_up {
                    CleanUp::RegionRemoved(identity) => live(identity),
                    CleanUp::Deleted { lifecycle_id, deletion_generation } => StatusAuthority::Deletion {
                        lifecycle_id: lifecycle_id.clone(),
                        deletion_generation: deletion_generation.clone(),
                    },
                };
                let stored = row.region_status.get(region);
                let same = stored.filter(|entry| match clean_up {
                    CleanUp::Deleted { lifecycle_id, deletion_generation } => {
                        entry.lifecycle_id.as_ref() == Some(lifecycle_id)
                            && entry.deletion_generation.as_ref() == Some(deletion_generation)
                    }
                    CleanUp::RegionRemoved(identity) => {
                        entry.lifecycle_id.as_ref() == Some(&identity.lifecycle_id)
                            && entry.region_generation.as_ref() == Some(&identity.region_generation)
                    }
                });
                let counted = same.and_then(|entry| entry.absence_observations).unwrap_or(0);
                // A sweep reads the cluster, not the row: what it finds is what is there.
                let observations = if self.objects.contains_key(region) { 0 } else { counted + 1 };
                let state = if observations >= TERMINAL_OBSERVATIONS { State::Deleted } else { State::Deleting };
                let observations = observations.min(TERMINAL_OBSERVATIONS);
                (authority, RegionEntry { absence_observations: Some(observations), ..RegionEntry::new(state) })
            }
            _ => return None,
        };
        match &authority {
            StatusAuthority::Live { lifecycle_id, region_generation } => {
                entry.lifecycle_id = Some(lifecycle_id.clone());
                entry.region_generation = Some(region_generation.clone());
            }
            StatusAuthority::Deletion { lifecycle_id, deletion_generation } => {
                entry.lifecycle_id = Some(lifecycle_id.clone());
                entry.deletion_generation = Some(deletion_generation.clone());
            }
        }
        if row.region_status.get(region).is_some_and(|stored| stored.says_the_same_as(&entry)) {
            return None;
        }
        let now = self.now();
        transition::write_region_status(row, region, &entry, &authority, now).ok()
    }

    /// What must hold in every state.
    fn judge(&self, path: &[Act]) {
        let Some(row) = self.row() else {
            let left = self.objects.keys().find(|region| !(self.declared && **region == WEST));
            assert_eq!(left, None, "purged, and objects are left: {path:?}");
            return;
        };
        for region in BOTH {
            if row.acknowledged(region) {
                assert!(!self.objects.contains_key(region), "{region} acknowledged and holds objects: {path:?}");
            }
        }
    }

    /// From here on the monitors are left alone: everything must come to its end.
    fn comes_to_its_end(&self, path: &[Act]) {
        let mut world = self.clone();
        for _ in 0..FAIR_ROUNDS {
            for region in BOTH {
                world.pass(region);
                world.judge(path);
            }
        }
        let Some(row) = world.row() else { return };
        assert_ne!(row.desired_state, DesiredState::Deleted, "never purged: {path:?}: {row:#?}");
        assert_eq!(row.desired_state, DesiredState::Running, "{path:?}");
        for region in BOTH {
            let held = world.objects.get(region).map(|identity| identity.region_generation.as_str());
            let entry = row.region_status.get(region);
            if row.is_target(region) {
                assert_eq!(held, row.region_generation(region), "{region} does not serve: {path:?}");
                let told = entry.map(|entry| (entry.state.clone(), entry.region_generation.as_deref()));
                assert_eq!(told, Some((State::Running, row.region_generation(region))), "{region}: {path:?}");
            } else {
                assert_eq!(held, None, "{region} was removed: {path:?}");
                assert!(row.acknowledged(region), "{region} was removed and does not say so: {path:?}");
            }
        }
    }

    /// The state without what only tells when and which random token: tokens are numbered in their order of appearance.
    fn essence(&self) -> String {
        let mut text = format!("{:?}|{:?}|{:?}|{}", self.row, self.before, self.objects, self.declared);
        let mut names = BTreeMap::new();
        let mut found = Vec::new();
        let bytes = text.as_bytes();
        let mut start = 0;
        for (index, byte) in bytes.iter().chain(b"\0").enumerate() {
            if byte.is_ascii_hexdigit() {
                continue;
            }
            if index - start == 64 {
                found.push(text[start..index].to_owned());
            }
            start = index + 1;
        }
        for token in found {
            let count = names.len();
            names.entry(token).or_insert(count);
        }
        for (token, number) in &names {
            text = text.replace(token, &format!("#{number}"));
        }
        // Versions only grow, and are compared for being the same: which of the two rows has which is all that counts.
        let same = self.row.as_ref().and_then(|row| row.get("updated_at"))
            == self.before.as_ref().and_then(|row| row.get("updated_at"));
        without_times(&text) + if same { "same" } else { "" }
    }
}

/// Cuts time-stamps: everything from `20` to `+00:00` inside quotes.
fn without_times(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    for piece in text.split('"') {
        kept.push('"');
        if !piece.ends_with("+00:00") {
            kept.push_str(piece);
        }
    }
    kept
}

fn live(identity: &RowIdentity) -> StatusAuthority {
    StatusAuthority::Live {
        lifecycle_id: identity.lifecycle_id.clone(),
        region_generation: identity.region_generation.clone(),
    }
}

#[test]
fn in_every_order_regions_come_and_go_and_a_deletion_ends_with_nothing_left() {
    /// There are about 1,100; far more would mean that something irrelevant is taken for a difference.
    const MOST_STATES: usize = 4_000;
    let mut seen = BTreeSet::new();
    let mut queue = VecDeque::from([(World::default(), Vec::new())]);
    let mut steps = 0_usize;
    let mut purged = 0_usize;
    let mut readded = 0_usize;
    while let Some((world, path)) = queue.pop_front() {
        for act in ACTS {
            let mut next = world.clone();
            next.act(act);
            steps += 1;
            let path: Vec<Act> = path.iter().copied().chain([act]).collect();
            next.judge(&path);
            if seen.len() < MOST_STATES && seen.insert(next.essence()) {
                purged += usize::from(world.row.is_some() && next.row.is_none());
                readded += usize::from(act == Act::Add && path.contains(&Act::Remove));
                next.comes_to_its_end(&path);
                queue.push_back((next, path));
            }
        }
    }
    let closed = seen.len() < MOST_STATES;
    println!(
        "{} states, {steps} steps, {purged} purges, {readded} regions added again; all of them: {closed}",
        seen.len()
    );
    assert!(closed, "more states than {MOST_STATES}: tokens or times are taken for differences");
    assert!(seen.len() > 300 && purged > 5 && readded > 5, "{} states, {purged}, {readded}", seen.len());
}

#[test]
fn d6_a_region_that_was_removed_and_has_acknowledged_does_so_once_more_when_the_row_is_deleted() {
    let mut world = World::default();
    world.act(Act::Create);
    for act in [Act::Pass(EAST), Act::Pass(WEST), Act::Remove, Act::Pass(WEST), Act::Pass(WEST)] {
        world.act(act);
    }
    assert!(world.row().unwrap().acknowledged(WEST));
    world.act(Act::Delete);
    assert!(!world.row().unwrap().acknowledged(WEST), "of this deletion it has said nothing yet");
    for _ in 0..3 {
        world.act(Act::Pass(WEST));
        world.act(Act::Pass(EAST));
    }
    world.act(Act::Pass(EAST));
    assert_eq!(world.row, None);
    assert!(world.objects.is_empty());
}

#[test]
fn d21_what_a_region_that_was_declared_gone_still_holds_stays_there() {
    let mut world = World::default();
    for act in [Act::Create, Act::Pass(EAST), Act::Pass(WEST), Act::Delete, Act::DeclareAbsent] {
        world.act(act);
    }
    for _ in 0..4 {
        world.act(Act::Pass(EAST));
    }
    assert_eq!(world.row, None, "one region is enough to purge");
    assert_eq!(world.objects.keys().collect::<Vec<_>>(), [&WEST]);
    // It comes back: without a row there is no pass that could touch anything.
    world.act(Act::Pass(WEST));
    assert_eq!(world.objects.keys().collect::<Vec<_>>(), [&WEST]);
    // The name lives again, and what is left of the life before makes way.
    world.act(Act::Create);
    for _ in 0..3 {
        world.act(Act::Pass(WEST));
    }
    let row = world.row().unwrap();
    assert_eq!(world.objects[WEST].lifecycle_id, row.lifecycle_id.unwrap());
}
