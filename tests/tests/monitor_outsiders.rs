//! The outsiders' rule: people and programs with every right in the models' namespace cannot change what says whose an object
//! is, and everything that Kubernetes, KEDA and people must be able to do still works.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_bed::wait;
use gco_local::platform::{self, OUTSIDERS_BINDINGS};
use gco_tests::fence::NAMESPACE;
use gco_tests::fence::calls::{Caller, Reply};
use gco_tests::fence::fenced::Fenced;
use gco_tests::fence::kinds::Target;
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, MonitorSettings};
use http::Method;
use serde_json::{Value, json};

/// Somebody with the role `edit`, as application teams have it.
const PERSON: &str = "someone@example.com";

/// KEDA's account.
const KEDA: &str = "system:serviceaccount:keda:keda-operator";

/// Who may go around the rule.
const BREAK_GLASS: &str = "gco:break-glass";

const RULES: [&str; 2] = ["gco-outsiders", "gco-outsiders-template"];

fn is_refused(reply: &Reply) -> bool {
    reply.status == 403 && RULES.iter().any(|rule| reply.is_refused_by(rule))
}

/// Rights in the models' namespace for a subject.
async fn grant(fenced: &Fenced, name: &str, role: &str, subject: Value) -> anyhow::Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    });
    platform::apply(fenced.region.client(), &binding).await?;
    Ok(())
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name})
}

#[tokio::test(flavor = "multi_thread")]
async fn others_are_kept_off_and_controllers_keda_and_people_still_work() -> anyhow::Result<()> {
    let fenced = Fenced::start(0, 1).await?;
    let region = &fenced.region;
    // Full rights in the namespace: more than `edit`, so that the rule and not RBAC is what refuses.
    grant(&fenced, "person", "cluster-admin", user(PERSON)).await?;
    grant(&fenced, "keda", "cluster-admin", user(KEDA)).await?;
    let person = Caller::speaking_for(region.client().clone(), PERSON, &["system:authenticated"]);
    let keda = Caller::speaking_for(region.client().clone(), KEDA, &["system:serviceaccounts", "system:authenticated"]);
    let glass = Caller::speaking_for(region.client().clone(), PERSON, &["system:authenticated", BREAK_GLASS]);

    let monitor = Monitor::leading_with(region, MonitorSettings::named("m1")).await?;
    region.deploy("chat", spec(2, "0")).await?;
    region.settled("chat").await?;
    // The fence holds as well: the two must not stand in each other's way.
    fenced.put_up().await?;
    platform::apply_all(region.client(), &[OUTSIDERS_BINDINGS]).await?;
    let deployments = Target::named("deployments.apps")?;
    let annotated = |value: &str| json!({"metadata": {"annotations": {"gco.io/leader-term": value}}});
    wait::until("the outsiders' rule to be in force", BOUND, || async {
        let path = format!("{}?dryRun=All", deployments.path("chat"));
        let body = annotated("999");
        let reply = person.send(Method::PATCH, &path, Some(("application/merge-patch+json", &body))).await;
        let reply = reply.map_err(|error| format!("{error:#}"))?;
        if is_refused(&reply) { Ok(()) } else { Err(format!("{}: {}", reply.status, reply.message())) }
    })
    .await?;

    people_are_refused(&person, &deployments).await?;
    people_still_can(&person, &deployments).await?;
    // The way around, for an emergency, and it is put right by an edit of the row.
    let reply = glass.patch(&deployments, "chat", &image("example.invalid/emergency:1")).await?;
    ensure!(reply.is_success(), "break-glass: {}", reply.body);

    // The real Deployment controller rolls an edit out, and the garbage collector clears away what is deleted.
    region.mark("chat", "1").await?;
    region.settled("chat").await?;
    let uid = fenced.actors.admin.get(&deployments, "chat").await?.uid();
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"});
    let path = deployments.path("chat");
    let reply = person.send(Method::DELETE, &path, Some(("application/json", &options))).await?;
    ensure!(reply.is_success(), "deleting: {}", reply.body);
    wait::until("the deleted Deployment to be collected and made again", BOUND, || async {
        let now = person.get(&deployments, "chat").await.map_err(|error| format!("{error:#}"))?;
        let new = now.is_success() && !now.is_terminating() && now.uid() != uid;
        if new { Ok(()) } else { Err(format!("{}: {}", now.status, now.uid())) }
    })
    .await
    .with_context(|| monitor.described())?;
    region.settled("chat").await?;

    autoscaled_by_the_real_controller(&fenced, &person).await?;
    kept_by_keda(&fenced, &keda, &person).await?;
    let refused = monitor.metric("gco_monitor_refused_writes_total", &[("reason", "admission_policy")]).await?;
    ensure!(refused == Some(0.0), "the rules refused the monitor: {refused:?}; {}", monitor.described());
    monitor.terminate(Duration::from_secs(20)).await?;

    // Uninstalled, everything is as before.
    platform::delete_all(region.client(), OUTSIDERS_BINDINGS).await?;
    wait::until("the outsiders' rule to be gone", BOUND, || async {
        let path = format!("{}?dryRun=All", deployments.path("chat"));
        let body = annotated("999");
        let reply = person.send(Method::PATCH, &path, Some(("application/merge-patch+json", &body))).await;
        let reply = reply.map_err(|error| format!("{error:#}"))?;
        if reply.is_success() { Ok(()) } else { Err(reply.message().to_owned()) }
    })
    .await?;
    fenced.take_down().await
}

fn image(image: &str) -> Value {
    // A merge patch replaces lists whole.
    json!({"metadata": {"annotations": {"suite/mark": "by hand"}}, "spec": {"template": {"spec": {"containers": [
        {"name": "inference", "image": image, "ports": [{"name": "http", "containerPort": 8000}]},
    ]}}}})
}

async fn people_are_refused(person: &Caller, deployments: &Target) -> anyhow::Result<()> {
    let services = Target::named("services")?;
    let changes = [
        ("another term", json!({"metadata": {"annotations": {"gco.io/leader-term": "999"}}})),
        ("no lifecycle", json!({"metadata": {"annotations": {"gco.io/lifecycle-id": null}}})),
        ("a new annotation of ours", json!({"metadata": {"annotations": {"gco.io/anything": "x"}}})),
        ("another type", json!({"metadata": {"labels": {"gco.io/type": "other"}}})),
        ("no project", json!({"metadata": {"labels": {"project": null}}})),
        ("another endpoint", json!({"metadata": {"labels": {"app": "other"}}})),
    ];
    for (what, change) in &changes {
        for target in [deployments, &services] {
            let reply = person.patch(target, "chat", change).await?;
            ensure!(is_refused(&reply), "{what} on {}: {} {}", target.resource, reply.status, reply.body);
        }
    }
    let restarted =
        json!({"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "x"}}}}});
    for (what, change) in [("another image", image("example.invalid/other:1")), ("a restart", restarted)] {
        let reply = person.patch(deployments, "chat", &change).await?;
        ensure!(is_refused(&reply), "{what}: {} {}", reply.status, reply.body);
    }
    for resource in ["configmaps", "services", "deployments.apps", "horizontalpodautoscalers.autoscaling"] {
        let target = Target::named(resource)?;
        let reply = person.create(&target, &target.object("smuggled", 999, "x"), "").await?;
        ensure!(is_refused(&reply), "creating {resource} as if it were ours: {} {}", reply.status, reply.body);
    }
    // Taking somebody's own object for one of ours.
    let configs = Target::named("configmaps")?;
    let mut own = configs.object("own", 1, "x");
    own["metadata"]["labels"] = json!({});
    own["metadata"]["annotations"] = json!({});
    let reply = person.create(&configs, &own, "").await?;
    ensure!(reply.is_success(), "an object of one's own: {}", reply.body);
    let labelled = json!({"metadata": {"labels": {"project": "gco", "gco.io/type": "inference"}}});
    let reply = person.patch(&configs, "own", &labelled).await?;
    ensure!(is_refused(&reply), "labelling an object of one's own: {} {}", reply.status, reply.body);
    // The status of a Deployment is another way to its annotations.
    let path = format!("{}/status", deployments.path("chat"));
    let body = json!({"metadata": {"annotations": {"gco.io/leader-term": "999"}}});
    let reply = person.send(Method::PATCH, &path, Some(("application/merge-patch+json", &body))).await?;
    ensure!(is_refused(&reply), "through the status: {} {}", reply.status, reply.body);
    Ok(())
}

async fn people_still_can(person: &Caller, deployments: &Target) -> anyhow::Result<()> {
    let allowed = [
        ("their own annotation", json!({"metadata": {"annotations": {"team.example.com/note": "x"}}})),
        ("their own label", json!({"metadata": {"labels": {"team": "x"}}})),
        ("pausing a rollout", json!({"spec": {"paused": true}})),
        ("going on with it", json!({"spec": {"paused": false}})),
    ];
    for (what, change) in &allowed {
        let reply = person.patch(deployments, "chat", change).await?;
        ensure!(reply.is_success(), "{what}: {} {}", reply.status, reply.body);
    }
    let path = format!("{}/scale", deployments.path("chat"));
    let body = json!({"spec": {"replicas": 2}});
    let reply = person.send(Method::PATCH, &path, Some(("application/merge-patch+json", &body))).await?;
    ensure!(reply.is_success(), "scaling: {} {}", reply.status, reply.body);
    Ok(())
}

/// A Deployment and an autoscaler with our labels, as the monitor makes them; the real controller scales one by the other.
async fn autoscaled_by_the_real_controller(fenced: &Fenced, person: &Caller) -> anyhow::Result<()> {
    let monitor = fenced.actors.monitor.first().context("no server")?;
    let term = gco_tests::fence::takeover::lease_term(&fenced.actors.admin).await?;
    let deployments = Target::named("deployments.apps")?;
    let autoscalers = Target::named("horizontalpodautoscalers.autoscaling")?;
    let mut deployment = deployments.object("scaled", term, "x");
    deployment["spec"]["replicas"] = json!(1);
    let reply = monitor.create(&deployments, &deployment, "").await?;
    ensure!(reply.is_success(), "{}", reply.body);
    let mut autoscaler = autoscalers.object("scaled", term, "x");
    autoscaler["spec"] = json!({
        "minReplicas": 3, "maxReplicas": 4,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"},
    });
    // The Role may not create autoscalers unless the monitor renders them; the rule is about everybody else.
    let reply = monitor.create(&autoscalers, &autoscaler, "").await?;
    if reply.status == 403 && !is_refused(&reply) {
        let glass =
            Caller::speaking_for(fenced.region.client().clone(), PERSON, &["system:authenticated", BREAK_GLASS]);
        let reply = glass.create(&autoscalers, &autoscaler, "").await?;
        ensure!(reply.is_success(), "{}", reply.body);
    } else {
        ensure!(reply.is_success(), "{}", reply.body);
    }
    wait::until("the autoscaler's controller to scale the Deployment and say so", BOUND, || async {
        let words = |error: anyhow::Error| format!("{error:#}");
        let scaled = person.get(&deployments, "scaled").await.map_err(words)?.body["spec"]["replicas"].as_i64();
        let status = person.get(&autoscalers, "scaled").await.map_err(words)?.body["status"].clone();
        let said = status["desiredReplicas"] == 3;
        if scaled == Some(3) && said { Ok(()) } else { Err(format!("{scaled:?} {status}")) }
    })
    .await?;
    for target in [&autoscalers, &deployments] {
        let path = target.path("scaled");
        ensure!(fenced.actors.admin.send(Method::DELETE, &path, None).await?.is_success(), "clearing {path}");
    }
    Ok(())
}

/// What KEDA does: a finalizer on the ScaledObject, an autoscaler with its labels and annotations that it owns, kept like it.
async fn kept_by_keda(fenced: &Fenced, keda: &Caller, person: &Caller) -> anyhow::Result<()> {
    let scaled_objects = Target::named("scaledobjects.keda.sh")?;
    let autoscalers = Target::named("horizontalpodautoscalers.autoscaling")?;
    let glass = Caller::speaking_for(fenced.region.client().clone(), PERSON, &["system:authenticated", BREAK_GLASS]);
    let owner = glass.create(&scaled_objects, &scaled_objects.object("chat-keda", 7, "x"), "").await?;
    ensure!(owner.is_success(), "{}", owner.body);
    let finalizer = json!({"metadata": {"finalizers": ["finalizer.keda.sh"], "labels": {"scaledobject.keda.sh/name": "chat-keda"}}});
    let reply = keda.patch(&scaled_objects, "chat-keda", &finalizer).await?;
    ensure!(reply.is_success(), "the finalizer: {}", reply.body);
    let status = json!({"status": {"hpaName": "keda-hpa-chat-keda"}});
    let path = format!("{}/status", scaled_objects.path("chat-keda"));
    let reply = keda.send(Method::PATCH, &path, Some(("application/merge-patch+json", &status))).await?;
    ensure!(reply.is_success(), "the status: {}", reply.body);

    let name = "keda-hpa-chat-keda";
    let mut kept = autoscalers.object(name, 7, "x");
    kept["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "name": "chat-keda", "uid": owner.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let reply = keda.create(&autoscalers, &kept, "").await?;
    ensure!(reply.is_success(), "the autoscaler: {}", reply.body);
    // The ScaledObject was stamped by a new leader; its copy follows.
    let reply =
        keda.patch(&autoscalers, name, &json!({"metadata": {"annotations": {"gco.io/leader-term": "8"}}})).await?;
    ensure!(reply.is_success(), "the copied stamp: {}", reply.body);
    // Without an owner it is anybody's, and giving one's own object an owner later does not help.
    let unowned = autoscalers.object("keda-hpa-smuggled", 7, "x");
    let reply = keda.create(&autoscalers, &unowned, "").await?;
    ensure!(is_refused(&reply), "an autoscaler without an owner: {} {}", reply.status, reply.body);
    let reply = person
        .patch(&scaled_objects, "chat-keda", &json!({"metadata": {"annotations": {"gco.io/leader-term": "999"}}}))
        .await?;
    ensure!(is_refused(&reply), "a person and the ScaledObject: {} {}", reply.status, reply.body);

    // Removed with its owner, by the real garbage collector.
    ensure!(
        fenced.actors.admin.send(Method::DELETE, &scaled_objects.path("chat-keda"), None).await?.is_success(),
        "delete"
    );
    let reply = keda.patch(&scaled_objects, "chat-keda", &json!({"metadata": {"finalizers": null}})).await?;
    ensure!(reply.is_success(), "the finalizer's end: {}", reply.body);
    wait::until("the autoscaler to go with its owner", BOUND, || async {
        let reply = person.get(&autoscalers, name).await.map_err(|error| format!("{error:#}"))?;
        if reply.status == 404 { Ok(()) } else { Err(reply.status.to_string()) }
    })
    .await?;
    Ok(())
}
