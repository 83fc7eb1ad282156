//! Restarts that no edit of the row asks for.

use super::*;

/// Restarts, unasked.
fn effects(plan: &Plan) -> (bool, bool) {
    match plan.steps.as_slice() {
        [Step::Replace { restarts, unasked, .. }] => (*restarts, *unasked),
        other => panic!("{other:#?}"),
    }
}

fn by_another_version(server: &mut Server) {
    server.edit(&deployment(), |body| {
        body["metadata"]["annotations"]["gco.io/renderer"] = json!("0");
        pod(body)["terminationGracePeriodSeconds"] = json!(77);
    });
}

#[test]
fn a_hash_that_changes_for_no_reason_restarts_nothing_that_says_the_same_already() {
    let identity = identity('1');
    let mut set = desired(&identity, |_| {});
    let mut server = settled(&identity);
    let template = server.objects[&deployment()]["spec"]["template"].clone();
    // A fault in the hash: rendered into the template too, as it would be.
    let wrong = "0".repeat(64);
    for object in &mut set.objects {
        if object.key.kind == Kind::Deployment {
            object.input_hash = Some(wrong.clone());
            object.body["metadata"]["annotations"]["gco.io/input-hash"] = json!(wrong);
            object.body["spec"]["template"]["metadata"]["annotations"]["gco.io/input-hash"] = json!(wrong);
        }
    }
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(effects(&plan), (false, false));
    server.apply(&plan);
    assert_eq!(server.objects[&deployment()]["spec"]["template"], template);
    assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
    // And when it is mended.
    let set = desired(&identity, |_| {});
    server.apply(&server.hold(NAME, &identity, &set));
    assert_eq!(server.objects[&deployment()]["spec"]["template"], template);
}

#[test]
fn a_hash_that_changes_for_no_reason_on_older_templates_waits_for_permission() {
    let identity = identity('1');
    let set = desired(&identity, |_| {});
    let mut server = settled(&identity);
    by_another_version(&mut server);
    server.edit(&deployment(), |body| body["metadata"]["annotations"]["gco.io/input-hash"] = json!("0".repeat(64)));
    server.may_restart = false;
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(short(&plan), Vec::<String>::new());
    assert_eq!(obstacles(&plan), [("deployment/chat".to_owned(), obstacle::RESTART_WAITS)]);
    // Counts and metadata do not wait for it.
    let scaled = desired(&identity, |spec| spec.replicas = 5);
    let plan = server.hold(NAME, &identity, &scaled);
    assert_eq!(effects(&plan), (false, false));
    server.may_restart = true;
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(effects(&plan), (true, true));
    server.apply(&plan);
    let cause = &server.objects[&deployment()]["metadata"]["annotations"]["gco.io/restart-cause"];
    assert_eq!(cause, &json!(format!("{} repair", crate::support::NOW)));
    // With an edit of the row it needs no permission.
    let mut server = settled(&identity);
    by_another_version(&mut server);
    server.may_restart = false;
    server.spec_digest = "another".to_owned();
    let edited = desired(&identity, |spec| spec.port = 9000);
    assert_eq!(effects(&server.hold(NAME, &identity, &edited)), (true, false));
}

#[test]
fn a_template_changed_by_hand_waits_for_permission() {
    let identity = identity('1');
    let set = desired(&identity, |_| {});
    let mut server = settled(&identity);
    server.edit(&deployment(), |body| container(body)["image"] = json!("evil:1"));
    server.may_restart = false;
    assert_eq!(
        obstacles(&server.hold(NAME, &identity, &set)),
        [("deployment/chat".to_owned(), obstacle::RESTART_WAITS)]
    );
    server.may_restart = true;
    assert_eq!(effects(&server.hold(NAME, &identity, &set)), (true, true));
}

#[test]
fn a_refresh_brings_another_versions_template_to_ours_and_leaves_ours_alone() {
    let identity = identity('1');
    let set = desired(&identity, |_| {});
    let mut server = settled(&identity);
    server.refresh = Some("2026-11-29T13:00:00+00:00".to_owned());
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(effects(&plan), (false, false), "noted, nothing restarts");
    server.apply(&plan);
    assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
    // The same wish does not count for what another version writes later.
    by_another_version(&mut server);
    assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
    server.refresh = Some("2026-11-29T14:00:00+00:00".to_owned());
    let plan = server.hold(NAME, &identity, &set);
    assert_eq!(effects(&plan), (true, true));
    server.apply(&plan);
    assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
}

#[test]
fn the_digest_of_a_spec_follows_every_edit_but_those_of_counts() {
    let digest = |edit: fn(&mut Item)| {
        let row = row_with("classic-minimal", |item| edit(map(item, "spec")));
        gco_monitor::plan::spec_digests(&row.spec).own
    };
    let before = digest(|_| {});
    assert_eq!(before, digest(|spec| drop(spec.insert("replicas".to_owned(), Attribute::from(9_i64)))));
    assert_eq!(before, digest(|spec| drop(spec.insert("max_surge".to_owned(), Attribute::from(1_i64)))));
    assert_ne!(before, digest(|spec| drop(spec.insert("image".to_owned(), Attribute::from("x:1")))));
    assert_ne!(before, digest(|spec| drop(spec.insert("unknown".to_owned(), Attribute::from("x")))));
    let canary = |weight: i64, image: &str| {
        let map =
            Item::from([("weight".to_owned(), Attribute::from(weight)), ("image".to_owned(), Attribute::from(image))]);
        let row = row_with("classic-minimal", |item| {
            super::map(item, "spec").insert("canary".to_owned(), Attribute::Map(map));
        });
        gco_monitor::plan::spec_digests(&row.spec)
    };
    assert_eq!(canary(10, "x:1"), canary(50, "x:1"));
    assert_ne!(canary(10, "x:1").canary, canary(10, "x:2").canary);
    // No edit of the canary is one of the endpoint's own Deployment.
    assert_eq!((canary(10, "x:2").own, canary(10, "x:1").own), (before.clone(), before));
}
