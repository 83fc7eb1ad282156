//! Differences that are restored, and those that are left to others.

use super::*;

#[test]
fn drift_in_what_we_own_is_noticed_named_and_restored() {
    let template = |field: &str| format!("spec.template.spec.{field}");
    let inside = |field: &str| format!("spec.template.spec.containers[inference].{field}");
    let drifts: Vec<(Drift, String)> = vec![
        (|body| body["spec"]["replicas"] = json!(9), "spec.replicas: changed".into()),
        (|body| body["spec"]["paused"] = json!(true), "spec.paused: unexpected".into()),
        (|body| body["spec"]["minReadySeconds"] = json!(5), "spec.minReadySeconds: changed".into()),
        (|body| body["spec"]["strategy"] = json!({"type": "Recreate"}), "spec.strategy.type: changed".into()),
        (|body| pod(body)["hostNetwork"] = json!(true), template("hostNetwork: unexpected")),
        (|body| pod(body)["dnsPolicy"] = json!("Default"), template("dnsPolicy: unexpected")),
        (
            |body| pod(body)["terminationGracePeriodSeconds"] = json!(1),
            template("terminationGracePeriodSeconds: changed"),
        ),
        (|body| pod(body)["serviceAccountName"] = json!("other"), template("serviceAccountName: changed")),
        (|body| pod(body)["securityContext"] = json!({}), template("securityContext.seccompProfile: missing")),
        (|body| push(&mut pod(body)["tolerations"], json!({"operator": "Exists"})), template("tolerations: changed")),
        (|body| push(&mut pod(body)["containers"], json!({"name": "side"})), template("containers[side]: unexpected")),
        (|body| pod(body)["nodeSelector"]["disk"] = json!("ssd"), template("nodeSelector.disk: unexpected")),
        (|body| pod(body)["volumes"] = json!([{"name": "v", "emptyDir": {}}]), template("volumes: unexpected")),
        (|body| container(body)["image"] = json!("evil:1"), inside("image: changed")),
        (
            |body| push(&mut container(body)["env"], json!({"name": "DEBUG", "value": "secret"})),
            inside("env.DEBUG: unexpected"),
        ),
        (|body| drop_first(&mut container(body)["env"]), inside("env.PYTHONHASHSEED: missing")),
        (|body| container(body)["env"][1]["value"] = json!("secret"), inside("env.MODEL: changed")),
        (|body| container(body)["env"].as_array_mut().unwrap().swap(0, 1), inside("env: order changed")),
        (|body| drop_first(&mut container(body)["args"]), inside("args: changed")),
        (|body| remove(container(body), "livenessProbe"), inside("livenessProbe: missing")),
        (
            |body| container(body)["readinessProbe"]["initialDelaySeconds"] = json!(9),
            inside("readinessProbe.initialDelaySeconds: unexpected"),
        ),
        (|body| container(body)["ports"][0]["name"] = json!("web"), inside("ports[8000].name: changed")),
        (|body| push(&mut container(body)["ports"], json!({"containerPort": 1})), inside("ports[1]: unexpected")),
        (
            |body| container(body)["resources"]["limits"]["memory"] = json!("1Gi"),
            inside("resources.limits.memory: changed"),
        ),
        (|body| container(body)["imagePullPolicy"] = json!("Always"), inside("imagePullPolicy: changed")),
        (
            |body| container(body)["terminationMessagePolicy"] = json!("FallbackToLogsOnError"),
            inside("terminationMessagePolicy: unexpected"),
        ),
        (
            |body| container(body)["securityContext"]["privileged"] = json!(true),
            inside("securityContext.privileged: unexpected"),
        ),
        (
            |body| {
                body["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = json!("now")
            },
            "spec.template.metadata.annotations.kubectl.kubernetes.io/restartedAt: unexpected".into(),
        ),
        (
            |body| remove(&mut body["spec"]["template"]["metadata"]["labels"], "project"),
            "spec.template.metadata.labels.project: missing".into(),
        ),
        (|body| remove(&mut body["metadata"]["labels"], "project"), "metadata.labels.project: missing".into()),
        (|body| body["metadata"]["annotations"]["gco.io/renderer"] = json!("none"), String::new()),
        (
            |body| remove(&mut body["metadata"]["annotations"], "gco.io/input-hash"),
            "metadata.annotations.gco.io/input-hash: missing".into(),
        ),
    ];
    let identity = identity('1');
    let set = desired(&identity, |_| {});
    for (drift, words) in drifts {
        let mut server = settled(&identity);
        let before = server.objects[&deployment()]["spec"].clone();
        server.edit(&deployment(), drift);
        let plan = server.hold(NAME, &identity, &set);
        if words.is_empty() {
            assert_eq!(plan, Plan::default(), "another renderer's template is kept");
            continue;
        }
        let (reason, restarts, _, _) = replacement(&plan);
        assert!(reason.contains(&words), "{words}: {reason}");
        assert!(!reason.contains("secret"), "{reason}");
        assert_eq!(restarts, words.starts_with("spec.template"), "{words}");
        server.apply(&plan);
        assert_eq!(server.objects[&deployment()]["spec"], before, "{words}");
        assert_eq!(server.hold(NAME, &identity, &set), Plan::default(), "{words}");
    }
}

fn push(list: &mut Value, value: Value) {
    list.as_array_mut().unwrap().push(value);
}

fn drop_first(list: &mut Value) {
    list.as_array_mut().unwrap().remove(0);
}

#[test]
fn drift_of_a_service_is_restored_and_its_address_kept() {
    let drifts: Vec<(Drift, &str)> = vec![
        (|body| body["spec"]["ports"][0]["targetPort"] = json!(8000), "spec.ports[80].targetPort: changed"),
        (|body| body["spec"]["ports"][0]["port"] = json!(8080), "spec.ports[80]: missing"),
        (|body| push(&mut body["spec"]["ports"], json!({"name": "x", "port": 81})), "spec.ports[81]: unexpected"),
        (|body| body["spec"]["selector"]["app"] = json!("other"), "spec.selector.app: changed"),
        (|body| body["spec"]["selector"]["x"] = json!("y"), "spec.selector.x: unexpected"),
        (|body| body["spec"]["type"] = json!("LoadBalancer"), "spec.type: changed"),
        (|body| body["spec"]["sessionAffinity"] = json!("ClientIP"), "spec.sessionAffinity: unexpected"),
        (|body| remove(&mut body["metadata"]["labels"], "app"), "metadata.labels.app: missing"),
    ];
    let identity = identity('1');
    let set = desired(&identity, |_| {});
    for (drift, words) in drifts {
        let mut server = settled(&identity);
        let before = server.objects[&service()]["spec"].clone();
        server.edit(&service(), drift);
        let plan = server.hold(NAME, &identity, &set);
        let (reason, restarts, scales_down, _) = replacement(&plan);
        assert!(reason.contains(words), "{words}: {reason}");
        assert!(!restarts && !scales_down);
        server.apply(&plan);
        assert_eq!(server.objects[&service()]["spec"], before, "{words}");
    }
}

#[test]
fn metadata_of_others_is_tolerated_and_carried_over() {
    let identity = identity('1');
    let mut server = settled(&identity);
    for key in [deployment(), service()] {
        server.edit(&key, |body| {
            body["metadata"]["labels"]["team"] = json!("search");
            body["metadata"]["annotations"]["note"] = json!("do not touch");
            body["metadata"]["finalizers"] = json!(["example.com/guard"]);
            body["metadata"]["ownerReferences"] = json!([{"kind": "App", "name": "x", "uid": "1"}]);
            body["status"] = json!({"replicas": 2});
        });
    }
    assert_eq!(server.hold(NAME, &identity, &desired(&identity, |_| {})), Plan::default());
    let set = desired(&identity, |spec| spec.image = "vllm/vllm-openai:v2".to_owned());
    server.apply(&server.hold(NAME, &identity, &set));
    let metadata = &server.objects[&deployment()]["metadata"];
    assert_eq!(metadata["labels"]["team"], json!("search"));
    assert_eq!(metadata["annotations"]["note"], json!("do not touch"));
    assert_eq!(metadata["annotations"]["deployment.kubernetes.io/revision"], json!("1"));
    assert_eq!(metadata["finalizers"], json!(["example.com/guard"]));
    assert_eq!(metadata["ownerReferences"][0]["name"], json!("x"));
}

#[test]
fn a_quantity_in_another_spelling_is_no_difference() {
    let identity = identity('1');
    let change = |spec: &mut Spec| {
        spec.gpu_count = 0;
        spec.resources.requests = texts(&[("cpu", "1000m"), ("memory", "1024Mi")]);
        spec.resources.limits = texts(&[("cpu", "2.0")]);
    };
    let mut server = Server::new();
    let set = desired(&identity, change);
    server.apply(&server.hold(NAME, &identity, &set));
    let live = &server.objects[&deployment()];
    assert_eq!(live.pointer("/spec/template/spec/containers/0/resources/requests/cpu"), Some(&json!("1")));
    assert_eq!(server.hold(NAME, &identity, &set), Plan::default());
}
