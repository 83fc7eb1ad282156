//! Random sequences of operations by actors with stale views and clocks that disagree: what must hold whatever happens.

use crate::common::{at, request};
use gco_store::row::{DesiredState, EndpointRow, Quorum};
use gco_store::spec::Spec;
use gco_store::status::{RegionEntry, State};
use gco_store::table::Outcome;
use gco_store::transition::{self, Declaration, Operation, StatusAuthority, Transition};
use gco_store::wire::{Item, Value};
use jiff::{Timestamp, ToSpan as _};
use proptest::prelude::*;

const REGIONS: [&str; 3] = ["us-east-1", "eu-west-1", "ap-south-1"];

/// One thing that one actor does.
#[derive(Clone, Debug)]
enum Act {
    Read,
    Create,
    Scale(i64),
    EditImage(u8),
    Stop,
    Start,
    Promote,
    Delete,
    Move(usize),
    Pause(bool),
    Report { region: usize, state: State, observations: u32 },
    Purge,
    Declare(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let state = prop_oneof![1 => Just(State::Running), 1 => Just(State::Deleting), 3 => Just(State::Deleted)];
    prop_oneof![
        8 => Just(Act::Read),
        2 => Just(Act::Create),
        1 => (1_i64..9).prop_map(Act::Scale),
        1 => (0_u8..3).prop_map(Act::EditImage),
        1 => Just(Act::Stop),
        1 => Just(Act::Start),
        1 => Just(Act::Promote),
        2 => Just(Act::Delete),
        1 => (1_usize..8).prop_map(Act::Move),
        1 => any::<bool>().prop_map(Act::Pause),
        6 => (0_usize..3, state, 0_u32..4).prop_map(|(region, state, observations)| Act::Report { region, state, observations }),
        4 => Just(Act::Purge),
        1 => (0_usize..3).prop_map(Act::Declare),
    ]
}

fn report(row: &EndpointRow, region: &str, state: &State, observations: u32, now: Timestamp) -> Option<Transition> {
    let lifecycle_id = row.lifecycle_id.clone()?;
    let authority = match row.deletion_generation.clone() {
        Some(deletion_generation) => StatusAuthority::Deletion { lifecycle_id, deletion_generation },
        None => {
            let region_generation = row.region_generation(region)?.to_owned();
            StatusAuthority::Live { lifecycle_id, region_generation }
        }
    };
    let mut entry = RegionEntry::new(state.clone());
    entry.absence_observations = Some(observations);
    transition::write_region_status(row, region, &entry, &authority, now).ok()
}

/// What an actor asks for, from what it last read.
fn ask(act: &Act, view: Option<&EndpointRow>, now: Timestamp, token: &mut dyn FnMut() -> String) -> Option<Transition> {
    if matches!(act, Act::Create) {
        return transition::create(&request("chat"), now, token).ok();
    }
    let row = view?;
    match act {
        Act::Read | Act::Create => None,
        Act::Scale(count) => transition::scale(row, *count, now).ok(),
        Act::EditImage(number) => {
            let mut spec = row.spec.as_map()?.clone();
            spec.insert("image".to_owned(), Value::from(format!("image:{number}")));
            transition::update_spec(row, Value::Map(spec), now).ok()
        }
        Act::Stop => transition::set_desired_state(row, DesiredState::Stopped, None, now, token).ok(),
        Act::Start => transition::start(row, now).ok(),
        Act::Promote => transition::promote(row, now).ok(),
        Act::Delete => transition::set_desired_state(row, DesiredState::Deleted, None, now, token).ok(),
        Act::Move(bits) => {
            let chosen = REGIONS.iter().enumerate().filter(|(index, _)| bits >> index & 1 == 1);
            let regions: Vec<String> = chosen.map(|(_, region)| (*region).to_owned()).collect();
            transition::update_target_regions(row, &regions, now, token).ok()
        }
        Act::Pause(paused) => transition::set_paused(row, *paused, now).ok(),
        Act::Report { region, state, observations } => report(row, REGIONS[*region], state, *observations, now),
        Act::Purge => transition::purge(row),
        Act::Declare(region) => {
            let word = Declaration { by: "ada".to_owned(), reason: "gone".to_owned() };
            transition::declare_absent(row, REGIONS[*region], &word, now).ok()
        }
    }
}

fn parse(item: &Item) -> EndpointRow {
    EndpointRow::parse(item.clone()).expect("every row can be read")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn fences_hold_in_every_sequence_of_racing_actors(
        acts in prop::collection::vec((act(), 0_usize..3, -90_i64..90), 1..80),
    ) {
        let mut count = 0_u64;
        let mut token = || { count += 1; format!("{count:064x}") };
        let mut current: Option<Item> = None;
        let mut views: [Option<EndpointRow>; 3] = [None, None, None];
        let mut applied: Vec<Transition> = Vec::new();
        for (step, (act, actor, skew)) in acts.iter().enumerate() {
            // Clocks of the actors disagree by up to three minutes.
            let elapsed = i64::try_from(step).expect("small") + skew;
            let now = at("2027-01-01T00:00:00Z").checked_add(elapsed.seconds()).expect("in range");
            if matches!(act, Act::Read) {
                views[*actor] = current.as_ref().map(parse);
                continue;
            }
            let Some(transition) = ask(act, views[*actor].as_ref(), now, &mut token) else { continue };
            let before = current.as_ref().map(parse);
            let outcome = transition.evaluate(current.clone()).expect("never invalid");
            let Outcome::Applied(after) = outcome else { continue };
            let after_row = after.as_ref().map(parse);
            match (&before, &after_row) {
                (Some(before), Some(after)) => {
                    prop_assert_eq!(&before.lifecycle_id, &after.lifecycle_id, "the identity is for life");
                    prop_assert!(before.updated_at < after.updated_at, "versions only grow: {:?}", transition);
                    let was_deleted = before.desired_state == DesiredState::Deleted;
                    if was_deleted {
                        prop_assert_eq!(&after.desired_state, &DesiredState::Deleted, "deleted is terminal");
                        prop_assert_eq!(&before.deletion_generation, &after.deletion_generation);
                        prop_assert_eq!(&before.deletion_regions, &after.deletion_regions);
                        prop_assert_eq!(&before.spec, &after.spec);
                        for region in REGIONS {
                            let entry = |row: &EndpointRow| row.region_status.get(region).cloned();
                            if before.acknowledged(region) {
                                prop_assert_eq!(entry(before), entry(after), "an acknowledgement is never overwritten");
                            }
                        }
                    }
                    if before.desired_state != after.desired_state {
                        let allowed = matches!(
                            (&before.desired_state, &after.desired_state),
                            (_, DesiredState::Deleted)
                                | (DesiredState::Deploying | DesiredState::Running, DesiredState::Stopped)
                                | (DesiredState::Deploying | DesiredState::Stopped, DesiredState::Running)
                        );
                        prop_assert!(allowed, "{:?} to {:?}", before.desired_state, after.desired_state);
                    }
                    for region in before.cleanup_regions.iter().flatten() {
                        prop_assert!(after.cleanup_regions.iter().flatten().any(|kept| kept == region), "history only grows");
                    }
                    prop_assert!(after.lifecycle_complete() && Spec::check(&after.spec).is_ok());
                }
                (Some(before), None) => prop_assert_eq!(before.quorum(), Quorum::Stands, "only a quorum purges"),
                (None, Some(_)) => prop_assert_eq!(transition.operation, Operation::Create, "only a create makes rows"),
                (None, None) => prop_assert!(false, "a purge of nothing was applied"),
            }
            current = after;
            if transition.operation != Operation::Create {
                applied.push(transition);
            }
            // However late a copy of an applied write arrives, it does nothing.
            for late in &applied {
                let outcome = late.evaluate(current.clone()).expect("never invalid");
                prop_assert!(matches!(outcome, Outcome::Refused(_)), "applied twice: {late:?}");
            }
        }
    }
}
