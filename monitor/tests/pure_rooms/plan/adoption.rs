//! Objects that the original made, taken over without a restart.

use super::*;
use gco_monitor::object::{ObservedPod, ObservedPort};

const SMALL: &str = "chat-small";

/// The original's `classic-minimal` with its pods, and what we render for the row.
struct Scene {
    server: Server,
    identity: RowIdentity,
    spec: Spec,
}

/// A pod of the original: no hash, no name for its port.
fn old_pod(name: &str, app: &str, identity: &RowIdentity, port: u64) -> ObservedPod {
    ObservedPod { port: Some(ObservedPort { name: None, number: port }), ..ready_pod(name, app, identity, None) }
}

impl Scene {
    fn new() -> Self {
        let row = row("classic-minimal");
        let identity = identity_of(&row, REGION);
        let spec = spec_of(&row);
        let mut server = Server::new();
        made_by_the_original(&mut server, "classic-minimal");
        server.spec = spec.clone();
        server.leader = leader(5);
        server.pods.push(old_pod("chat-small-1", SMALL, &identity, 8000));
        Self { server, identity, spec }
    }

    fn set(&self) -> DesiredSet {
        rendered(SMALL, &self.identity, &self.spec)
    }

    fn plan(&self) -> Plan {
        self.server.hold(SMALL, &self.identity, &self.set())
    }

    /// An edit of the row.
    fn edit(&mut self, change: impl FnOnce(&mut Spec)) {
        change(&mut self.spec);
        self.server.spec = self.spec.clone();
        self.server.spec_digest.push('+');
    }

    fn deployment(&self) -> &Value {
        &self.server.objects[&key(Kind::Deployment, SMALL)]
    }

    fn template(&self) -> Value {
        self.deployment()["spec"]["template"].clone()
    }

    fn annotation(&self, name: &str) -> Value {
        self.deployment()["metadata"]["annotations"][name].clone()
    }

    fn target_port(&self) -> &Value {
        &self.server.objects[&key(Kind::Service, SMALL)]["spec"]["ports"][0]["targetPort"]
    }

    fn hash(&self) -> String {
        self.spec.template_input_hash(REGION)
    }

    /// Every pod is replaced by one of the template as it is.
    fn roll_out(&mut self) {
        let template = self.template();
        let port = gco_monitor::object::model_port(&template["spec"]);
        let hash = template["metadata"]["annotations"]["gco.io/input-hash"].as_str().map(str::to_owned);
        self.server.pods = vec![ObservedPod { port, ..ready_pod("new", SMALL, &self.identity, hash.as_deref()) }];
    }

    /// Carries the plan out; which objects are replaced, and whether pods are.
    fn act(&mut self) -> Vec<(String, bool, bool)> {
        let plan = self.plan();
        assert!(plan.obstacles.is_empty(), "{:?}", plan.obstacles);
        self.server.apply(&plan);
        plan.steps
            .iter()
            .filter_map(|step| match step {
                Step::Replace { key, restarts, unasked, .. } => Some((key.to_string(), *restarts, *unasked)),
                Step::Stamp { .. } => None,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn adopted() -> Self {
        let mut scene = Self::new();
        scene.act();
        assert_eq!(scene.plan(), Plan::default());
        scene
    }
}

fn replaced(kind: &str, restarts: bool, unasked: bool) -> (String, bool, bool) {
    (format!("{kind}/{SMALL}"), restarts, unasked)
}

#[test]
fn what_the_original_made_is_taken_over_at_once_without_a_restart() {
    let mut scene = Scene::new();
    let template = scene.template();
    assert_eq!(scene.act(), [replaced("deployment", false, false), replaced("service", false, false)]);
    assert_eq!(scene.template(), template, "the template is untouched, the leader's mark in it included");
    assert_eq!(scene.annotation("gco.io/input-hash"), json!(scene.hash()));
    assert_eq!(scene.annotation("gco.io/renderer"), json!("original"));
    assert_eq!(scene.annotation("gco.io/leader-term"), json!("5"));
    assert_eq!(scene.deployment()["spec"]["strategy"]["rollingUpdate"]["maxSurge"], json!(0), "converges at once");
    assert_eq!(scene.target_port(), &json!(8000), "pods do not name their port yet");
    assert_eq!(scene.plan(), Plan::default(), "and at rest");
}

#[test]
fn objects_that_nobody_marked_are_taken_over_too() {
    let mut scene = Scene::new();
    for kind in [Kind::Deployment, Kind::Service] {
        scene.server.edit(&key(kind, SMALL), |body| body["metadata"]["annotations"] = json!({}));
    }
    let template = scene.template();
    assert_eq!(scene.act().len(), 2);
    assert_eq!(scene.template(), template);
    assert_eq!(scene.annotation("gco.io/lifecycle-id"), json!(scene.identity.lifecycle_id));
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn nothing_is_taken_over_while_the_table_is_away() {
    let mut scene = Scene::new();
    scene.server.table_away = true;
    let plan = scene.plan();
    assert_eq!(plan.steps, []);
    let names = ["deployment", "service"].map(|kind| (format!("{kind}/{SMALL}"), obstacle::TABLE_AWAY));
    assert_eq!(obstacles(&plan), names);
}

#[test]
fn an_edit_after_the_adoption_is_rolled_out_and_the_service_follows_the_pods() {
    let mut scene = Scene::adopted();
    scene.edit(|spec| spec.env = texts(&[("MODEL", "new")]));
    assert_eq!(scene.act(), [replaced("deployment", true, false)]);
    assert_eq!(scene.annotation("gco.io/restart-cause"), json!("edit"));
    assert_eq!(scene.annotation("gco.io/renderer"), json!(RENDERER_VERSION.to_string()));
    assert_eq!(scene.target_port(), &json!(8000), "the pod of before is reached until it is gone");
    assert_eq!(scene.plan(), Plan::default());
    scene.roll_out();
    assert_eq!(scene.act(), [replaced("service", false, false)]);
    assert_eq!(scene.target_port(), &json!("http"));
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn a_port_changes_in_two_steps_under_pods_that_do_not_name_theirs() {
    let mut scene = Scene::adopted();
    scene.edit(|spec| {
        spec.port = 9000;
        spec.args = vec!["--port".to_owned(), "9000".to_owned()];
    });
    let before = scene.template();
    assert_eq!(scene.act(), [replaced("deployment", true, false)]);
    let mut named = before;
    named["spec"]["containers"][0]["ports"][0]["name"] = json!("http");
    assert_eq!(scene.template(), named, "the first step names the port and does nothing else");
    assert_eq!(scene.plan(), Plan::default(), "until every pod names it");
    scene.roll_out();
    assert_eq!(scene.act(), [replaced("service", false, false)]);
    assert_eq!(scene.target_port(), &json!("http"));
    assert_eq!(scene.act(), [replaced("deployment", true, false)], "still asked for by the edit");
    let container = &scene.template()["spec"]["containers"][0];
    assert_eq!(container["ports"][0], json!({"name": "http", "containerPort": 9000, "protocol": "TCP"}));
    scene.roll_out();
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn an_edit_that_is_taken_back_between_the_two_steps_leaves_the_pods_as_they_are() {
    let mut scene = Scene::adopted();
    scene.edit(|spec| spec.port = 9000);
    scene.act();
    scene.roll_out();
    scene.edit(|spec| spec.port = 8000);
    let template = scene.template();
    for _ in 0..2 {
        scene.act();
    }
    assert_eq!(scene.template(), template);
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn an_image_that_the_original_had_not_come_to_is_rolled_out_within_the_limits_on_restarts() {
    let mut scene = Scene::new();
    scene.edit(|spec| spec.image = "vllm/vllm-openai:v9".to_owned());
    scene.server.may_restart = false;
    let template = scene.template();
    let plan = scene.plan();
    assert_eq!(obstacles(&plan), [(format!("deployment/{SMALL}"), obstacle::RESTART_WAITS)]);
    scene.server.apply(&plan);
    assert_eq!(scene.template(), template);
    scene.server.may_restart = true;
    assert_eq!(scene.act(), [replaced("deployment", true, true)]);
    assert_eq!(scene.template()["spec"]["containers"][0]["image"], json!("vllm/vllm-openai:v9"));
}

#[test]
fn what_the_original_never_applied_waits_for_an_edit_or_a_refresh() {
    let mut scene = Scene::new();
    scene.edit(|spec| spec.env = texts(&[("NEVER", "applied")]));
    let template = scene.template();
    assert_eq!(scene.act().len(), 2);
    assert_eq!(scene.template(), template);
    assert_eq!(scene.plan(), Plan::default());
    scene.server.refresh = Some("2026-11-29T13:00:00+00:00".to_owned());
    assert_eq!(scene.act(), [replaced("deployment", true, true)]);
    assert!(scene.annotation("gco.io/restart-cause").as_str().unwrap().ends_with(" refresh"));
    assert_eq!(scene.annotation("gco.io/refreshed"), json!("2026-11-29T13:00:00+00:00"));
    assert_ne!(scene.template(), template);
    scene.roll_out();
    scene.act();
    assert_eq!(scene.plan(), Plan::default(), "once");
}

#[test]
fn a_refresh_from_before_the_adoption_restarts_nothing() {
    let mut scene = Scene::new();
    scene.server.refresh = Some("2026-11-29T13:00:00+00:00".to_owned());
    let template = scene.template();
    scene.act();
    assert_eq!(scene.template(), template);
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn an_image_that_the_original_applied_when_it_was_back_is_not_rolled_out_again() {
    // Adopted, then given back, edited, applied by the original's own patch, and taken over again.
    let mut scene = Scene::adopted();
    scene.edit(|spec| spec.image = "vllm/vllm-openai:v9".to_owned());
    scene.server.edit(&key(Kind::Deployment, SMALL), |body| {
        body["spec"]["template"]["spec"]["containers"][0]["image"] = json!("vllm/vllm-openai:v9");
        body["metadata"]["annotations"]["gco.io/leader-epoch"] = json!("e".repeat(64));
    });
    let template = scene.template();
    assert_eq!(scene.act(), [replaced("deployment", false, false)]);
    assert_eq!(scene.template(), template);
    assert_eq!(scene.annotation("gco.io/input-hash"), json!(scene.hash()));
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn the_originals_patch_of_an_image_on_pods_that_we_rendered_is_not_rolled_out_again() {
    let mut scene = Scene::adopted();
    scene.edit(|spec| spec.env = texts(&[("MODEL", "new")]));
    scene.act();
    scene.roll_out();
    scene.act();
    scene.edit(|spec| spec.image = "vllm/vllm-openai:v9".to_owned());
    scene.server.edit(&key(Kind::Deployment, SMALL), |body| {
        body["spec"]["template"]["spec"]["containers"][0]["image"] = json!("vllm/vllm-openai:v9");
    });
    let template = scene.template();
    assert_eq!(scene.act(), [replaced("deployment", false, false)]);
    assert_eq!(scene.template(), template);
    assert_eq!(scene.annotation("gco.io/input-hash"), json!(scene.hash()));
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn an_image_that_somebody_puts_into_an_adopted_template_is_put_right() {
    let mut scene = Scene::adopted();
    scene.server.edit(&key(Kind::Deployment, SMALL), |body| {
        body["spec"]["template"]["spec"]["containers"][0]["image"] = json!("evil:1");
    });
    assert_eq!(scene.act(), [replaced("deployment", true, true)]);
    assert_eq!(scene.template()["spec"]["containers"][0]["image"], json!(scene.spec.image));
}

#[test]
fn what_the_original_made_can_be_stopped_and_gets_the_current_rendering_at_its_next_start() {
    let mut scene = Scene::new();
    for kind in [Kind::Deployment, Kind::Service] {
        scene.server.edit(&key(kind, SMALL), |body| body["metadata"]["annotations"] = json!({}));
    }
    let template = scene.template();
    let plan = scene.server.stop(SMALL, &scene.identity);
    assert_eq!(short(&plan), ["replace deployment/chat-small"]);
    scene.server.apply(&plan);
    assert_eq!(scene.deployment()["spec"]["replicas"], json!(0));
    assert_eq!(scene.template(), template, "the template is untouched");
    assert_eq!(scene.annotation("gco.io/lifecycle-id"), json!(scene.identity.lifecycle_id), "and it is ours");
    assert_eq!(scene.server.stop(SMALL, &scene.identity), Plan::default());
    scene.server.pods.clear();
    assert_eq!(scene.act(), [replaced("deployment", false, false), replaced("service", false, false)]);
    assert_ne!(scene.template(), template);
    assert_eq!(scene.target_port(), &json!("http"));
    assert_eq!(scene.plan(), Plan::default());
}

#[test]
fn the_originals_rendering_of_every_classic_fixture_is_known() {
    // The comparison that tells what the original never applied: for objects that it has just made, nothing differs.
    for fixture in ["classic-minimal", "classic-hpa", "classic-canary"] {
        let row = row(fixture);
        let mut server = Server::new();
        made_by_the_original(&mut server, fixture);
        for (key, body) in server.objects.iter().filter(|(key, _)| key.kind == Kind::Deployment) {
            let spec = spec_of(&row);
            let canary = spec.canary.as_ref().filter(|_| key.name.ends_with("-canary"));
            let image = canary.map_or(spec.image.clone(), |canary| canary.image.clone());
            let found =
                gco_monitor::plan::differences_from_original(&key.name, &image, &spec, &body["spec"]["template"]);
            assert_eq!(found, [], "{key}");
        }
    }
}
