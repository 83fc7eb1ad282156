//! The rules that the model keeps, as requests with the status that the documents lead one to expect, each with the document
//! that it comes from. The conformance suite plays every rule on the model and on a real server and compares all answers.

mod scaled_objects;

use http::Method;
use serde_json::{Value, json};

use crate::conformance::{Step, example};

/// A document of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    /// <https://kubernetes.io/docs/reference/using-api/api-concepts/>
    ApiConcepts,
    /// <https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md>
    ApiConventions,
    /// <https://kubernetes.io/docs/concepts/architecture/garbage-collection/>
    GarbageCollection,
    /// <https://kubernetes.io/docs/concepts/overview/working-with-objects/finalizers/>
    Finalizers,
    /// <https://kubernetes.io/docs/concepts/overview/working-with-objects/names/>
    Names,
    /// <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>
    Labels,
    /// <https://kubernetes.io/docs/concepts/workloads/controllers/deployment/>
    Deployment,
    /// <https://kubernetes.io/docs/concepts/services-networking/service/>
    Service,
    /// <https://kubernetes.io/docs/concepts/architecture/leases/>
    Leases,
    /// <https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/>
    Autoscaling,
    /// <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/>
    CustomResources,
    /// <https://kubernetes.io/docs/tasks/run-application/configure-pdb/>
    DisruptionBudgets,
    /// <https://kubernetes.io/docs/concepts/configuration/secret/>
    Secrets,
    /// <https://kubernetes.io/docs/concepts/services-networking/network-policies/>
    NetworkPolicies,
}

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// What holds.
    pub name: &'static str,
    /// Who says so.
    pub document: Document,
    /// What shows it.
    pub steps: Vec<Step>,
    /// The kind whose watch is compared as well, from before the first step.
    pub watched: Option<(&'static str, &'static str)>,
}

fn rule(name: &'static str, document: Document, steps: Vec<Step>) -> Rule {
    Rule { name, document, steps, watched: None }
}

fn watched(name: &'static str, plural: &'static str, selector: &'static str, steps: Vec<Step>) -> Rule {
    Rule { name, document: Document::ApiConcepts, steps, watched: Some((plural, selector)) }
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    if let Some(place) = object.pointer_mut(pointer) {
        *place = value;
    } else if let Some((parent, name)) = pointer.rsplit_once('/')
        && let Some(parent) = object.pointer_mut(parent)
    {
        parent[name] = value;
    }
    object
}

fn of_live(object: Value, version: &str) -> Value {
    with(with(object, "/metadata/uid", json!("$uid")), "/metadata/resourceVersion", json!(version))
}

fn without_spec_field(mut object: Value, field: &str) -> Value {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove(field);
    }
    object
}

const ELSE: &str = "11111111-1111-4111-8111-111111111111";

/// All rules.
#[must_use]
pub fn all() -> Vec<Rule> {
    let mut rules = of_writes();
    rules.extend(of_deletions());
    rules.extend(of_reads());
    rules.extend(of_kinds());
    rules.extend(scaled_objects::all());
    rules.extend(of_watches());
    rules
}

fn config(variant: usize) -> Value {
    example("configmaps", "a", variant)
}

fn post(plural: &'static str, variant: usize) -> Step {
    Step::post(plural, example(plural, "a", variant)).expect(201)
}

fn of_writes() -> Vec<Rule> {
    use Document::{ApiConcepts, ApiConventions, Names};
    vec![
        rule(
            "a POST creates, and refuses a name that is taken",
            ApiConcepts,
            vec![
                post("configmaps", 1),
                Step::post("configmaps", config(2)).expect(409),
                Step::get("configmaps", "a").expect(200),
            ],
        ),
        rule(
            "a POST does not take a version",
            ApiConventions,
            vec![
                Step::post("configmaps", with(config(1), "/metadata/resourceVersion", json!("7"))).expect(500),
                Step::post("configmaps", with(config(1), "/metadata/resourceVersion", json!("0"))).expect(201),
            ],
        ),
        rule(
            "a POST gives an identity of its own, whatever it is told",
            ApiConventions,
            vec![Step::post("configmaps", with(config(1), "/metadata/uid", json!(ELSE))).expect(201)],
        ),
        rule(
            "a PUT of the read version replaces the whole object",
            ApiConcepts,
            vec![
                post("configmaps", 1),
                Step::put("configmaps", "a", of_live(config(2), "$version")).expect(200),
                Step::get("configmaps", "a").expect(200),
            ],
        ),
        rule(
            "a PUT of an older version is a conflict",
            ApiConcepts,
            vec![
                post("configmaps", 1),
                Step::put("configmaps", "a", of_live(config(2), "$version")).expect(200),
                Step::put("configmaps", "a", of_live(config(3), "$old")).expect(409),
                Step::get("configmaps", "a").expect(200),
            ],
        ),
        rule(
            "a PUT of another uid is a conflict",
            ApiConcepts,
            vec![
                post("configmaps", 1),
                Step::put("configmaps", "a", with(config(2), "/metadata/uid", json!(ELSE))).expect(409),
            ],
        ),
        rule(
            "a PUT without a version: the last writer wins",
            ApiConcepts,
            vec![post("configmaps", 1), Step::put("configmaps", "a", config(2)).expect(200)],
        ),
        rule(
            "a PUT that changes nothing makes no new version",
            ApiConcepts,
            vec![
                post("deployments", 1),
                Step::put("deployments", "a", of_live(example("deployments", "a", 1), "$version")).expect(200),
                Step::get("deployments", "a").expect(200),
            ],
        ),
        rule(
            "a PUT of an absent name is refused",
            ApiConcepts,
            vec![
                Step::put("deployments", "a", example("deployments", "a", 1)).expect(404),
                Step::put("configmaps", "a", with(config(1), "/metadata/resourceVersion", json!("5"))).expect(404),
            ],
        ),
        rule(
            "the name in a PUT is the name in its path",
            Names,
            vec![post("configmaps", 1), Step::put("configmaps", "a", example("configmaps", "b", 1)).expect(400)],
        ),
        rule(
            "a merge patch of metadata changes that and nothing else",
            ApiConcepts,
            vec![
                post("deployments", 1),
                Step::patch("deployments", "a", json!({"metadata": {"annotations": {"note": "x"}}})).expect(200),
                Step::patch("deployments", "a", json!({"metadata": {"annotations": {"note": null}}})).expect(200),
                Step::get("deployments", "a").expect(200),
            ],
        ),
        rule(
            "a merge patch of a version is refused on any other",
            ApiConcepts,
            vec![
                post("configmaps", 1),
                Step::patch(
                    "configmaps",
                    "a",
                    json!({"metadata": {"resourceVersion": "$version", "labels": {"x": "y"}}}),
                )
                .expect(200),
                Step::patch("configmaps", "a", json!({"metadata": {"resourceVersion": "$old", "labels": {"x": "z"}}}))
                    .expect(409),
            ],
        ),
        rule(
            "a merge patch does not change a uid",
            ApiConventions,
            vec![
                post("configmaps", 1),
                Step::patch("configmaps", "a", json!({"metadata": {"uid": ELSE}})).expect(422),
                Step::get("configmaps", "a").expect(200),
            ],
        ),
        rule(
            "a merge patch of an absent name is refused",
            ApiConcepts,
            vec![Step::patch("configmaps", "a", json!({"metadata": {"labels": {"x": "y"}}})).expect(404)],
        ),
        rule(
            "a merge patch that changes nothing makes no new version",
            ApiConcepts,
            vec![
                post("deployments", 1),
                Step::patch("deployments", "a", json!({"metadata": {"labels": {"app": "a"}}})).expect(200),
                Step::get("deployments", "a").expect(200),
            ],
        ),
        rule(
            "a field that the kind does not have is refused when validation is strict, and dropped when not",
            ApiConcepts,
            vec![
                Step::post("deployments", with(example("deployments", "a", 1), "/spec/bogus", json!(1)))
                    .query("fieldValidation=Strict")
                    .expect(400),
                Step::post("deployments", with(example("deployments", "a", 1), "/spec/bogus", json!(1)))
                    .query("fieldValidation=Ignore")
                    .expect(201),
            ],
        ),
        rule(
            "a value of a wrong type is refused",
            ApiConcepts,
            vec![
                Step::post("deployments", with(example("deployments", "a", 1), "/spec/replicas", json!("two")))
                    .expect(400),
                Step::post("configmaps", with(config(1), "/data", json!("text"))).expect(400),
            ],
        ),
        rule(
            "a dry run answers and stores nothing",
            ApiConcepts,
            vec![
                Step::post("configmaps", config(1)).query("dryRun=All").expect(201),
                Step::get("configmaps", "a").expect(404),
                post("configmaps", 1),
                Step::put("configmaps", "a", of_live(config(2), "$version")).query("dryRun=All").expect(200),
                Step::get("configmaps", "a").expect(200),
            ],
        ),
        rule(
            "the generation counts changes of the spec",
            ApiConventions,
            vec![
                post("networkpolicies", 1),
                Step::patch("networkpolicies", "a", json!({"metadata": {"annotations": {"note": "x"}}})).expect(200),
                Step::put("networkpolicies", "a", of_live(example("networkpolicies", "a", 2), "$version")).expect(200),
                post("poddisruptionbudgets", 1),
                Step::patch("poddisruptionbudgets", "a", json!({"metadata": {"labels": {"note": "x"}}})).expect(200),
                Step::put("poddisruptionbudgets", "a", of_live(example("poddisruptionbudgets", "a", 2), "$version"))
                    .expect(200),
            ],
        ),
        rule(
            "status is not written through the main resource",
            ApiConventions,
            vec![
                Step::post("deployments", with(example("deployments", "a", 1), "/status", json!({"replicas": 7})))
                    .expect(201),
                Step::put(
                    "deployments",
                    "a",
                    of_live(with(example("deployments", "a", 2), "/status", json!({"replicas": 7})), "$version"),
                )
                .expect(200),
                Step::get("deployments", "a").expect(200),
            ],
        ),
        rule(
            "names are DNS names",
            Names,
            vec![
                Step::post("configmaps", example("configmaps", "Upper", 1)).expect(422),
                Step::post("configmaps", example("configmaps", "-a", 1)).expect(422),
                Step::post("configmaps", example("configmaps", "1.b", 1)).expect(201),
                Step::post("services", with(example("services", "a", 1), "/metadata/name", json!("1a"))).expect(422),
            ],
        ),
    ]
}

fn of_deletions() -> Vec<Rule> {
    use Document::{ApiConcepts, Finalizers, GarbageCollection};
    let only = |uid: &str, version: &str| json!({"preconditions": {"uid": uid, "resourceVersion": version}});
    vec![
        rule(
            "a DELETE removes at once what nothing holds",
            ApiConcepts,
            vec![
                post("configmaps", 1),
                Step::delete("configmaps", "a", json!({})).expect(200),
                Step::get("configmaps", "a").expect(404),
                Step::delete("configmaps", "a", json!({})).expect(404),
            ],
        ),
        rule(
            "a DELETE of another uid or version is a conflict",
            ApiConcepts,
            vec![
                post("deployments", 1),
                Step::delete("deployments", "a", only(ELSE, "$version")).expect(409),
                Step::patch("deployments", "a", json!({"metadata": {"labels": {"x": "y"}}})).expect(200),
                Step::delete("deployments", "a", only("$uid", "$old")).expect(409),
                Step::delete("deployments", "a", only("$uid", "$version")).expect(200),
            ],
        ),
        rule(
            "a deletion in the foreground marks the object and waits",
            GarbageCollection,
            vec![
                post("deployments", 1),
                Step::delete("deployments", "a", json!({"propagationPolicy": "Foreground"})).expect(200),
                Step::get("deployments", "a").expect(200),
                Step::post("deployments", example("deployments", "a", 1)).expect(409),
                Step::delete("deployments", "a", json!({"propagationPolicy": "Foreground"})).expect(200),
                Step::get("deployments", "a").expect(200),
            ],
        ),
        rule(
            "a deletion in the background overtakes one in the foreground",
            GarbageCollection,
            vec![
                post("services", 1),
                Step::delete("services", "a", json!({"propagationPolicy": "Foreground"})).expect(200),
                Step::delete("services", "a", json!({"propagationPolicy": "Background"})).expect(200),
                Step::get("services", "a").expect(404),
            ],
        ),
        rule(
            "a deletion without a policy goes on with one in the foreground",
            GarbageCollection,
            vec![
                Step::post("configmaps", config(1)).expect(201),
                Step::delete("configmaps", "a", json!({"propagationPolicy": "Foreground"})).expect(200),
                Step::delete("configmaps", "a", json!({})).expect(200),
                Step::get("configmaps", "a").expect(200),
                Step::delete("configmaps", "a", json!({"propagationPolicy": "Background"})).expect(200),
                Step::get("configmaps", "a").expect(404),
            ],
        ),
        rule(
            "a deletion of one version in the background does not overtake one in the foreground",
            GarbageCollection,
            vec![
                Step::post("configmaps", config(1)).expect(201),
                Step::delete("configmaps", "a", json!({"propagationPolicy": "Foreground"})).expect(200),
                Step::delete(
                    "configmaps",
                    "a",
                    json!({"preconditions": {"resourceVersion": "$version"}, "propagationPolicy": "Background"}),
                )
                .expect(409),
                Step::get("configmaps", "a").expect(200),
            ],
        ),
        rule(
            "a dying object can be written, and is not saved by it",
            GarbageCollection,
            vec![
                post("deployments", 1),
                Step::delete("deployments", "a", json!({"propagationPolicy": "Foreground"})).expect(200),
                Step::patch("deployments", "a", json!({"metadata": {"annotations": {"note": "x"}}})).expect(200),
                Step::get("deployments", "a").expect(200),
                Step::patch(
                    "deployments",
                    "a",
                    json!({"metadata": {"finalizers": ["example.com/more", "foregroundDeletion"]}}),
                )
                .expect(422),
            ],
        ),
        rule(
            "a finalizer holds a deletion up until it is taken away",
            Finalizers,
            vec![
                Step::post("configmaps", with(config(1), "/metadata/finalizers", json!(["example.com/held"])))
                    .expect(201),
                Step::delete("configmaps", "a", json!({})).expect(200),
                Step::get("configmaps", "a").expect(200),
                Step::patch("configmaps", "a", json!({"metadata": {"finalizers": null}})).expect(200),
                Step::get("configmaps", "a").expect(404),
            ],
        ),
        rule(
            "a name that is free again gets a new identity",
            ApiConcepts,
            vec![post("configmaps", 1), Step::delete("configmaps", "a", json!({})).expect(200), post("configmaps", 1)],
        ),
        rule(
            "a dry run deletes nothing",
            ApiConcepts,
            vec![
                post("configmaps", 1),
                Step::delete("configmaps", "a", json!({"dryRun": ["All"]})).expect(200),
                Step::get("configmaps", "a").expect(200),
            ],
        ),
    ]
}

fn of_reads() -> Vec<Rule> {
    use Document::{ApiConcepts, Labels};
    let three = || {
        ["a", "b", "c"]
            .into_iter()
            .enumerate()
            .map(|(index, name)| Step::post("services", example("services", name, index)).expect(201))
            .collect::<Vec<_>>()
    };
    let after = |steps: Vec<Step>| three().into_iter().chain(steps).collect();
    let meta = |step: Step| Step { metadata_only: true, ..step };
    vec![
        rule(
            "an absent object is not found",
            ApiConcepts,
            vec![Step::get("deployments", "a").expect(404), meta(Step::get("secrets", "a")).expect(404)],
        ),
        rule(
            "metadata can be asked for alone",
            ApiConcepts,
            vec![
                post("secrets", 1),
                meta(Step::get("secrets", "a")).expect(200),
                meta(Step::get("secrets", "")).expect(200),
            ],
        ),
        rule(
            "a list comes in pages of one moment",
            ApiConcepts,
            after(vec![
                Step::get("services", "").query("limit=2").expect(200),
                Step::get("services", "").query("limit=2&continue=$continue").expect(200),
            ]),
        ),
        rule(
            "a change between two pages does not show",
            ApiConcepts,
            after(vec![
                Step::get("services", "").query("limit=2").expect(200),
                Step::delete("services", "c", json!({})).expect(200),
            ]),
        ),
        rule(
            "a list from any version ignores the limit",
            ApiConcepts,
            after(vec![Step::get("services", "").query("limit=2&resourceVersion=0").expect(200)]),
        ),
        rule(
            "a broken continuation is refused",
            ApiConcepts,
            after(vec![Step::get("services", "").query("limit=2&continue=nonsense").expect(400)]),
        ),
        rule(
            "labels select",
            Labels,
            after(vec![
                Step::get("services", "").query("labelSelector=half%3Deven").expect(200),
                Step::get("services", "").query("labelSelector=half%21%3Deven").expect(200),
                Step::get("services", "").query("labelSelector=app%20in%20%28a%2Cc%29%2Chalf%3Deven").expect(200),
                Step::get("services", "").query("labelSelector=nothing").expect(200),
                Step::get("services", "").query("labelSelector=%21nothing").expect(200),
            ]),
        ),
        rule(
            "label values are short and plain",
            Labels,
            vec![
                Step::post("configmaps", with(config(1), "/metadata/labels/bad", json!("has spaces"))).expect(422),
                Step::post("configmaps", with(config(1), "/metadata/labels/long", json!("x".repeat(64)))).expect(422),
                Step::post("configmaps", with(config(1), "/metadata/labels/good", json!("x".repeat(63)))).expect(201),
            ],
        ),
        rule(
            "a name can be selected by field",
            ApiConcepts,
            after(vec![Step::get("services", "").query("fieldSelector=metadata.name%3Db").expect(200)]),
        ),
    ]
}

fn of_kinds() -> Vec<Rule> {
    use Document::{Autoscaling, Deployment, DisruptionBudgets, Leases, NetworkPolicies, Secrets, Service};
    let deployment = |variant| example("deployments", "a", variant);
    let service = |variant| example("services", "a", variant);
    vec![
        rule(
            "a Deployment's defaults",
            Deployment,
            vec![
                Step::post(
                    "deployments",
                    without_spec_field(without_spec_field(deployment(1), "replicas"), "strategy"),
                )
                .expect(201),
            ],
        ),
        rule(
            "the pull policy follows the tag of a whole PUT",
            Deployment,
            vec![
                Step::post("deployments", deployment(1)).expect(201),
                Step::put("deployments", "a", of_live(deployment(3), "$version")).expect(200),
                Step::put("deployments", "a", of_live(deployment(2), "$version")).expect(200),
            ],
        ),
        rule(
            "a whole PUT can change the strategy to Recreate",
            Deployment,
            vec![
                post("deployments", 1),
                Step::put(
                    "deployments",
                    "a",
                    of_live(with(deployment(1), "/spec/strategy", json!({"type": "Recreate"})), "$version"),
                )
                .expect(200),
            ],
        ),
        rule(
            "a Deployment's generation counts changes of spec and annotations, not of labels",
            Deployment,
            vec![
                post("deployments", 1),
                Step::patch("deployments", "a", json!({"metadata": {"annotations": {"note": "x"}}})).expect(200),
                Step::patch("deployments", "a", json!({"metadata": {"labels": {"note": "x"}}})).expect(200),
                Step::patch("deployments", "a", json!({"spec": {"replicas": 3}})).expect(200),
            ],
        ),
        rule(
            "a Deployment's selector fits its template and never changes",
            Deployment,
            vec![
                Step::post("deployments", with(deployment(1), "/spec/selector/matchLabels/app", json!("other")))
                    .expect(422),
                Step::post("deployments", with(deployment(1), "/spec/selector", json!({}))).expect(422),
                post("deployments", 1),
                Step::put(
                    "deployments",
                    "a",
                    of_live(with(deployment(1), "/spec/selector/matchLabels", json!({"half": "odd"})), "$version"),
                )
                .expect(422),
            ],
        ),
        rule(
            "a container has an image, a count is not negative",
            Deployment,
            vec![
                Step::post("deployments", with(deployment(1), "/spec/template/spec/containers/0/image", json!("")))
                    .expect(422),
                Step::post("deployments", with(deployment(1), "/spec/replicas", json!(-1))).expect(422),
                Step::post("deployments", with(deployment(1), "/spec/template/spec/containers", json!([]))).expect(422),
            ],
        ),
        rule(
            "an environment entry, a port and a probe that a PUT lacks are gone",
            Deployment,
            vec![
                post("deployments", 1),
                Step::put(
                    "deployments",
                    "a",
                    of_live(
                        with(
                            deployment(1),
                            "/spec/template/spec/containers/0",
                            json!({"name": "inference", "image": "engine:v1"}),
                        ),
                        "$version",
                    ),
                )
                .expect(200),
            ],
        ),
        rule(
            "a Service keeps its address through a PUT that leaves it out",
            Service,
            vec![
                post("services", 1),
                Step::put("services", "a", of_live(service(2), "$version")).expect(200),
                Step::put(
                    "services",
                    "a",
                    of_live(with(service(2), "/spec/clusterIP", json!("10.96.77.77")), "$version"),
                )
                .expect(422),
            ],
        ),
        rule(
            "a Service needs ports, and names for several",
            Service,
            vec![
                Step::post("services", without_spec_field(service(1), "ports")).expect(422),
                Step::post("services", with(service(1), "/spec/ports", json!([{"port": 80}, {"port": 81}])))
                    .expect(422),
                Step::post("services", with(service(1), "/spec/ports", json!([{"port": 80}]))).expect(201),
            ],
        ),
        rule(
            "a PUT of an absent Service creates it, unless a uid is given",
            Service,
            vec![
                Step::put(
                    "services",
                    "a",
                    with(with(service(1), "/metadata/uid", json!(ELSE)), "/metadata/resourceVersion", json!("5")),
                )
                .expect(409),
                Step::put("services", "a", service(1)).expect(201),
            ],
        ),
        rule(
            "a PUT of an absent Lease creates it, unless a uid is given",
            Leases,
            vec![
                Step::put(
                    "leases",
                    "a",
                    with(
                        with(example("leases", "a", 1), "/metadata/uid", json!(ELSE)),
                        "/metadata/resourceVersion",
                        json!("5"),
                    ),
                )
                .expect(409),
                Step::put("leases", "a", with(example("leases", "a", 1), "/metadata/resourceVersion", json!("5")))
                    .expect(201),
            ],
        ),
        rule(
            "a Lease is renewed by its version",
            Leases,
            vec![
                post("leases", 1),
                Step::put("leases", "a", of_live(example("leases", "a", 2), "$version")).expect(200),
                Step::put("leases", "a", of_live(example("leases", "a", 3), "$old")).expect(409),
                Step::put("leases", "a", example("leases", "a", 3)).expect(422),
            ],
        ),
        rule(
            "an autoscaler's defaults and bounds",
            Autoscaling,
            vec![
                Step::post(
                    "horizontalpodautoscalers",
                    without_spec_field(example("horizontalpodautoscalers", "a", 1), "minReplicas"),
                )
                .expect(201),
                Step::post(
                    "horizontalpodautoscalers",
                    with(example("horizontalpodautoscalers", "b", 1), "/spec/minReplicas", json!(0)),
                )
                .expect(422),
                Step::post(
                    "horizontalpodautoscalers",
                    with(example("horizontalpodautoscalers", "b", 1), "/spec/minReplicas", json!(9)),
                )
                .expect(422),
                Step::put(
                    "horizontalpodautoscalers",
                    "a",
                    of_live(example("horizontalpodautoscalers", "a", 2), "$version"),
                )
                .expect(200),
            ],
        ),
        rule(
            "a disruption budget is replaced by its version only",
            DisruptionBudgets,
            vec![
                post("poddisruptionbudgets", 1),
                Step::put("poddisruptionbudgets", "a", example("poddisruptionbudgets", "a", 2)).expect(422),
                Step::put("poddisruptionbudgets", "a", of_live(example("poddisruptionbudgets", "a", 2), "$version"))
                    .expect(200),
            ],
        ),
        rule("a Secret has a type", Secrets, vec![post("secrets", 1), Step::get("secrets", "a").expect(200)]),
        rule("a network policy's ports have a protocol", NetworkPolicies, vec![post("networkpolicies", 1)]),
        rule(
            "an unknown method on a collection is refused",
            Document::ApiConcepts,
            vec![Step::new(Method::PUT, "configmaps", "").expect(405)],
        ),
    ]
}

fn of_watches() -> Vec<Rule> {
    let label = |value: &str| json!({"metadata": {"labels": {"half": value}}});
    vec![
        watched(
            "a watch tells what is added, modified and deleted",
            "configmaps",
            "",
            vec![
                post("configmaps", 1),
                Step::patch("configmaps", "a", json!({"metadata": {"annotations": {"note": "x"}}})).expect(200),
                Step::delete("configmaps", "a", json!({})).expect(200),
            ],
        ),
        watched(
            "leaving the selection is a deletion with the old content and the new version",
            "configmaps",
            "half%3Deven",
            vec![
                post("configmaps", 2),
                Step::patch("configmaps", "a", label("odd")).expect(200),
                Step::patch("configmaps", "a", json!({"metadata": {"annotations": {"unseen": "x"}}})).expect(200),
                Step::patch("configmaps", "a", label("even")).expect(200),
                Step::delete("configmaps", "a", json!({})).expect(200),
            ],
        ),
        watched(
            "a write that changes nothing is no event",
            "services",
            "",
            vec![
                post("services", 1),
                Step::put("services", "a", of_live(example("services", "a", 1), "$version")).expect(200),
                Step::patch("services", "a", json!({"metadata": {"labels": {"app": "a"}}})).expect(200),
            ],
        ),
        watched(
            "a deletion in the foreground is a modification first",
            "deployments",
            "",
            vec![
                post("deployments", 1),
                Step::delete("deployments", "a", json!({"propagationPolicy": "Foreground"})).expect(200),
                Step::delete("deployments", "a", json!({"propagationPolicy": "Background"})).expect(200),
            ],
        ),
    ]
}
