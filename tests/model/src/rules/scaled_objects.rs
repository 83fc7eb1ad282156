//! What the monitor does with ScaledObjects, a kind of KEDA's, and what KEDA's finalizer makes of it.

use serde_json::json;

use super::{Document, Rule, of_live, post, rule, watched, with, without_spec_field};
use crate::conformance::{Step, example};

pub(super) fn all() -> Vec<Rule> {
    use Document::{CustomResources, Finalizers};
    const KIND: &str = "scaledobjects";
    const HELD: &str = "finalizer.keda.sh";
    let scaled = |variant| example(KIND, "a", variant);
    let held = || json!({"metadata": {"resourceVersion": "$version", "finalizers": [HELD], "labels": {"held": "yes"}}});
    let released = || json!({"metadata": {"resourceVersion": "$version", "finalizers": null}});
    let claimed =
        json!({"preconditions": {"uid": "$uid", "resourceVersion": "$version"}, "propagationPolicy": "Foreground"});
    vec![
        rule(
            "a ScaledObject is stored as it is sent, noughts included, and has a generation",
            CustomResources,
            vec![
                post(KIND, 2),
                Step::post(KIND, scaled(3)).expect(409),
                Step::get(KIND, "a").expect(200),
                Step::get(KIND, "").query("labelSelector=half%3Deven").expect(200),
            ],
        ),
        rule(
            "a ScaledObject is replaced by its version only; its generation follows its spec",
            CustomResources,
            vec![
                post(KIND, 1),
                Step::put(KIND, "a", scaled(2)).expect(422),
                Step::put(KIND, "a", of_live(scaled(2), "$version")).expect(200),
                Step::put(KIND, "a", of_live(scaled(3), "$old")).expect(409),
                Step::put(KIND, "a", of_live(scaled(2), "$version")).expect(200),
                Step::patch(KIND, "a", json!({"metadata": {"annotations": {"note": "x"}}})).expect(200),
                Step::get(KIND, "a").expect(200),
            ],
        ),
        rule(
            "a ScaledObject that is absent is not made by a PUT",
            CustomResources,
            vec![
                Step::put(KIND, "a", with(scaled(1), "/metadata/resourceVersion", json!("5"))).expect(404),
                Step::get(KIND, "a").expect(404),
                Step::delete(KIND, "a", json!({})).expect(404),
            ],
        ),
        rule(
            "a field that the definition lacks is refused when validation is strict, and dropped when not",
            CustomResources,
            vec![
                Step::post(KIND, with(scaled(1), "/spec/bogus", json!(1))).query("fieldValidation=Strict").expect(400),
                Step::post(KIND, with(scaled(1), "/spec/bogus", json!(1))).query("fieldValidation=Ignore").expect(201),
            ],
        ),
        rule(
            "a field that the definition requires is missed",
            CustomResources,
            vec![
                Step::post(KIND, without_spec_field(scaled(1), "triggers")).expect(422),
                Step::post(KIND, without_spec_field(scaled(1), "scaleTargetRef")).expect(422),
            ],
        ),
        rule(
            "a finalizer keeps a deleted ScaledObject until its owner takes it away",
            Finalizers,
            vec![
                post(KIND, 1),
                Step::patch(KIND, "a", held()).expect(200),
                Step::delete(KIND, "a", claimed.clone()).expect(200),
                Step::get(KIND, "a").expect(200),
                Step::put(
                    KIND,
                    "a",
                    of_live(with(scaled(2), "/metadata/finalizers", json!([HELD, "foregroundDeletion"])), "$version"),
                )
                .expect(200),
                Step::delete(KIND, "a", json!({"propagationPolicy": "Background"})).expect(200),
                Step::patch(KIND, "a", released()).expect(200),
                Step::get(KIND, "a").expect(404),
            ],
        ),
        rule(
            "a finalizer that comes too late is refused",
            Finalizers,
            vec![
                post(KIND, 1),
                Step::delete(KIND, "a", claimed).expect(200),
                Step::patch(KIND, "a", json!({"metadata": {"finalizers": ["foregroundDeletion", HELD]}})).expect(422),
            ],
        ),
        Rule {
            document: CustomResources,
            ..watched(
                "a watch tells of ScaledObjects as of anything else",
                KIND,
                "",
                vec![
                    post(KIND, 1),
                    Step::patch(KIND, "a", held()).expect(200),
                    Step::put(KIND, "a", of_live(with(scaled(2), "/metadata/finalizers", json!([HELD])), "$version"))
                        .expect(200),
                    Step::delete(KIND, "a", json!({"propagationPolicy": "Foreground"})).expect(200),
                ],
            )
        },
    ]
}
