//! What is written, and what is not written again.

use super::*;

#[test]
fn a_stored_entry_that_says_the_same_is_not_written_again() {
    // D-15.
    let complete = swept(1, absence(true, &[], &[], &[]));
    let scenes: Vec<fn() -> Scene> = vec![
        || Scene::of(1),
        || Scene::of(3).pods(2, 1),
        || Scene::of(1).pods(1, 0).done(failure(Category::Throttled)),
        || Scene::of(1).done(obstructed(obstacle::FOREIGN)),
        || stopped(Scene::of(1).pods(1, 0)),
        || scene_of("classic-hpa"),
        || scene_of("invalid-many-fields"),
        || scene_of("unknown-keys"),
    ];
    for (number, scene) in scenes.into_iter().enumerate() {
        let entry = scene().entry();
        let mut again = scene().stored(&entry);
        again.now = LATER;
        assert_eq!(again.report(), None, "scene {number}");
    }
    let entry = deleting().done(complete.clone()).entry();
    let mut again = deleting().done(complete).stored(&entry);
    again.now = LATER;
    assert_eq!(again.report(), None);
}

#[test]
fn the_time_since_when_a_condition_holds_is_kept_until_its_status_changes() {
    let first = Scene::of(3).pods(3, 0).entry();
    let mut scene = Scene::of(3).pods(1, 2).stored(&first);
    scene.now = LATER;
    let second = scene.entry();
    assert_eq!(second.last_sync.as_deref(), Some(LATER));
    let since = |entry: &RegionEntry, kind| condition(entry, kind).unwrap().since.clone();
    assert_eq!(since(&second, "Ready"), NOW, "still ready, though with fewer pods");
    let mut scene = Scene::of(3).pods(0, 3).stored(&second);
    scene.now = LATER;
    assert_eq!(since(&scene.entry(), "Ready"), LATER);
}

#[test]
fn an_entry_of_another_lifecycle_or_generation_is_replaced_whole() {
    for change in [
        (|entry: &mut RegionEntry| entry.lifecycle_id = Some("another".to_owned())) as fn(&mut RegionEntry),
        |entry| entry.region_generation = Some("another".to_owned()),
        |entry| entry.lifecycle_id = None,
    ] {
        let mut stored = Scene::of(1).pods(1, 0).entry();
        change(&mut stored);
        stored.extra.insert("roles".to_owned(), Attribute::from(1));
        let mut scene = Scene::of(1).pods(1, 0).stored(&stored);
        scene.now = LATER;
        let entry = scene.entry();
        assert!(entry.extra.is_empty());
        assert!(entry.conditions.iter().all(|condition| condition.since == LATER));
        // Nor is it a word to fall back on.
        let scene = scene_of("mooncake-store");
        let mut stored = original_entry(&scene.row, State::Running, 2, 2);
        change(&mut stored);
        assert_eq!(scene.stored(&stored).entry().state, State::Failed);
    }
}

#[test]
fn leftovers_of_a_canary_vanish_from_the_entry_of_an_endpoint_that_is_served() {
    let mut stored = Scene::of(1).pods(1, 0).entry();
    stored.extra.insert("canary".to_owned(), Attribute::Map(Item::new()));
    assert!(Scene::of(1).pods(1, 0).stored(&stored).entry().extra.is_empty());
}

#[test]
fn a_pause_is_told_wherever_it_holds() {
    let others = BTreeSet::new();
    let context = RegionContext { region: REGION, namespace: NAMESPACE, other_names: &others, frozen: true };
    for scene in [Scene::of(1).pods(1, 0), stopped(Scene::of(1)), deleting()] {
        let intent = gco_monitor::intent::decide(&scene.row, &context);
        let entry = scene.report_as(&intent).unwrap();
        assert_eq!(said(&entry, "Paused").0, "True", "{intent:?}");
        let calm = scene.entry();
        assert_eq!(said(&calm, "Paused").0, "");
        assert_eq!(entry.state, calm.state, "a pause changes no word");
    }
}

#[test]
fn a_region_with_nothing_to_say_says_nothing() {
    let scene = Scene::of(1).pods(1, 0);
    for intent in
        [Intent::Ignore, Intent::BackFill, Intent::AwaitPurge, Intent::Unusable { reason: reason::NO_VERSION }]
    {
        assert_eq!(scene.report_as(&intent), None, "{intent:?}");
    }
    let clean_up = CleanUp::RegionRemoved(scene.identity());
    assert!(scene.report_as(&Intent::Remove { clean_up, paused: false }).is_some());
}
