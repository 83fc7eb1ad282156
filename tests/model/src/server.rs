//! The verbs: what the server does with a request and answers. Watches are in [`crate::watching`].

use http::Method;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::object::{Generation, Resource, annotation, finalizers, is_terminating, map_at, text};
use crate::request::{Request, Selector, Target};
use crate::schema::{self, Cause, Unreadable};
use crate::state::{Place, State};

/// Finalizer of a deletion in the foreground.
pub const FOREGROUND: &str = "foregroundDeletion";

/// Annotation that the order rule compares.
const TERM: &str = "gco.io/leader-term";

/// Does what a request asks for.
pub fn handle(state: &mut State, request: &Request) -> Answer {
    let (resource, namespace, name, sub_resource) = match &request.target {
        Target::Discovery { group, version } => return discover(state, group, version),
        Target::Other => return no_such_page(),
        Target::Objects { resource, namespace, name, sub_resource } => (*resource, namespace, name, sub_resource),
    };
    if resource.optional && !state.installed.contains(resource.group) {
        return no_such_page();
    }
    let Some(name) = name else {
        return match request.method {
            Method::GET => list(state, resource, namespace, request),
            Method::POST => create(state, resource, namespace, request),
            _ => method_not_allowed(),
        };
    };
    let place = Place::of(resource, namespace, name);
    match (&request.method, sub_resource.as_str()) {
        (&Method::GET, "") => get(state, &place, request),
        (&Method::PUT, "" | "status") => replace(state, &place, request, sub_resource == "status"),
        (&Method::PATCH, "" | "status") => patch(state, &place, request, sub_resource == "status"),
        (&Method::DELETE, "") => delete(state, &place, request),
        _ => method_not_allowed(),
    }
}

fn no_such_page() -> Answer {
    Answer::of(404, json!("404 page not found\n"))
}

fn method_not_allowed() -> Answer {
    let message = "the server does not allow this method on the requested resource";
    Answer::refusal(405, "MethodNotAllowed", message, json!({}))
}

fn discover(state: &State, group: &str, version: &str) -> Answer {
    let fits = |one: &&Resource| {
        one.group == group && one.version == version && (!one.optional || state.installed.contains(one.group))
    };
    let found: Vec<Value> = crate::object::RESOURCES
        .iter()
        .filter(fits)
        .map(|one| json!({"name": one.plural, "kind": one.kind, "namespaced": true}))
        .collect();
    if found.is_empty() {
        return no_such_page();
    }
    let of = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Answer::of(200, json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": of, "resources": found}))
}

/// An object as the `Accept` header wants it.
fn shaped(object: &Value, request: &Request) -> Value {
    if !request.wants_metadata() {
        return object.clone();
    }
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn get(state: &State, place: &Place, request: &Request) -> Answer {
    match state.get(place) {
        Some(object) => Answer::of(200, shaped(object, request)),
        None => Answer::not_found(place.resource(), &place.name),
    }
}

/// Fields that a field selector asks for: names and, of events, what they are about.
fn field_selected(object: &Value, selector: &str) -> bool {
    selector.split(',').filter(|part| !part.is_empty()).all(|part| {
        let Some((path, wanted)) = part.split_once('=') else { return true };
        text(object, &format!("/{}", path.replace('.', "/"))) == wanted.trim_start_matches('=')
    })
}

fn list(state: &State, resource: &'static Resource, namespace: &str, request: &Request) -> Answer {
    let mut version = state.version();
    let mut after = String::new();
    if let Some(token) = request.parameter("continue") {
        let parsed = token.split_once(':').and_then(|(version, after)| Some((version.parse().ok()?, after.to_owned())));
        let Some((of, last)) = parsed else { return Answer::bad_request("continue key is not valid") };
        (version, after) = (of, last);
        if version < state.compacted() {
            return expired("The provided continue parameter is too old to display a consistent list result.");
        }
    } else if let Some(wanted) = request.parameter("resourceVersion").and_then(|wanted| wanted.parse::<u64>().ok())
        && wanted > version
    {
        let message = format!("Too large resource version: {wanted}, current: {version}");
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        return Answer::refusal(504, "Timeout", &message, json!({"causes": [cause], "retryAfterSeconds": 1}));
    }
    listed(state, resource, namespace, request, version, &after)
}

/// 410.
#[must_use]
pub fn expired(message: &str) -> Answer {
    Answer::refusal(410, "Expired", message, Value::Null)
}

/// The page of a list at a version, after a name.
#[must_use]
pub fn listed(
    state: &State,
    resource: &'static Resource,
    namespace: &str,
    request: &Request,
    version: u64,
    after: &str,
) -> Answer {
    let selector = Selector::parse(request.parameter("labelSelector").unwrap_or_default());
    let fields = request.parameter("fieldSelector").unwrap_or_default();
    let limit = request.parameter("limit").and_then(|limit| limit.parse::<usize>().ok()).unwrap_or(0);
    // A list from any version ignores the limit.
    let limit = if request.parameter("resourceVersion") == Some("0") { 0 } else { limit };
    let all = state.all_at(resource, namespace, version);
    let mut rest = all
        .iter()
        .filter(|(place, object)| {
            place.name.as_str() > after && selector.takes(object) && field_selected(object, fields)
        })
        .peekable();
    let mut items: Vec<Value> = Vec::new();
    let mut last = String::new();
    while let Some((place, object)) = rest.peek() {
        if limit > 0 && items.len() >= limit {
            break;
        }
        let mut item = shaped(object, request);
        if !request.wants_metadata()
            && !resource.optional
            && let Some(item) = item.as_object_mut()
        {
            item.remove("kind");
            item.remove("apiVersion");
        }
        last.clone_from(&place.name);
        items.push(item);
        rest.next();
    }
    let left = rest.count();
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if left > 0 {
        metadata["continue"] = json!(format!("{version}:{last}"));
        if selector == Selector::default() && fields.is_empty() {
            metadata["remainingItemCount"] = json!(left);
        }
    } else if resource.optional && !request.wants_metadata() {
        // Lists of custom resources always say that nothing follows.
        metadata["continue"] = json!("");
    }
    let (kind, api_version) = if request.wants_metadata() {
        ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned())
    } else {
        (format!("{}List", resource.kind), resource.api_version())
    };
    // Of metadata alone, no items are no list.
    let items = if items.is_empty() && request.wants_metadata() { Value::Null } else { json!(items) };
    Answer::of(200, json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items}))
}

/// The body as the kind reads it, or the refusal.
fn body_of(resource: &Resource, request: &Request) -> Result<Value, Box<Answer>> {
    let refuse = |message: &str| Box::new(Answer::bad_request(message));
    let Some(sent) = request.body.as_ref().filter(|body| body.is_object()) else {
        return Err(refuse("the body of the request was in an unknown format"));
    };
    let cannot =
        format!("{} in version \"{}\" cannot be handled as a {}", resource.kind, resource.version, resource.kind);
    let strict = request.parameter("fieldValidation") == Some("Strict");
    match schema::read(resource, sent, strict) {
        Ok(mut body) => {
            body["kind"] = json!(resource.kind);
            body["apiVersion"] = json!(resource.api_version());
            Ok(body)
        }
        Err(Unreadable::Type(why)) => Err(refuse(&format!("{cannot}: json: {why}"))),
        Err(Unreadable::Unknown(fields)) => {
            let fields: Vec<String> = fields.iter().map(|field| format!("unknown field \"{field}\"")).collect();
            Err(refuse(&format!("{cannot}: strict decoding error: {}", fields.join(", "))))
        }
    }
}

fn create(state: &mut State, resource: &'static Resource, namespace: &str, request: &Request) -> Answer {
    let mut body = match body_of(resource, request) {
        Ok(body) => body,
        Err(answer) => return *answer,
    };
    if !state.namespaces.contains(namespace) {
        let message = format!("namespaces \"{namespace}\" not found");
        return Answer::refusal(404, "NotFound", &message, json!({"name": namespace, "kind": "namespaces"}));
    }
    let its_namespace = text(&body, "/metadata/namespace");
    if !its_namespace.is_empty() && its_namespace != namespace {
        return Answer::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        );
    }
    if !matches!(text(&body, "/metadata/resourceVersion"), "" | "0") {
        return Answer::refusal(500, "", "resourceVersion should not be set on objects to be created", json!({}));
    }
    if text(&body, "/metadata/name").is_empty() {
        let stem = text(&body, "/metadata/generateName").to_owned();
        if stem.is_empty() {
            let causes = [Cause {
                reason: "FieldValueRequired",
                message: "Required value: name or generateName is required".to_owned(),
                field: "metadata.name".to_owned(),
            }];
            return Answer::invalid(resource, "", &causes);
        }
        body["metadata"]["name"] = json!(format!("{stem}{}", state.suffix()));
    }
    let place = Place::of(resource, namespace, text(&body, "/metadata/name"));
    if let Some(there) = state.get(&place)
        && schema_problems_of_new(state.version(), resource, &body).is_empty()
    {
        return Answer::already_exists(resource, &place.name, is_terminating(there));
    }
    match make(state, resource, &place, body, dry(request)) {
        Ok(object) => Answer::of(201, shaped(&object, request)),
        Err(answer) => *answer,
    }
}

fn schema_problems_of_new(version: u64, resource: &Resource, body: &Value) -> Vec<Cause> {
    let mut filled = body.clone();
    schema::fill_in(resource, &mut filled, &mut || version);
    schema::problems(resource, &filled, None)
}

fn dry(request: &Request) -> bool {
    request.parameter("dryRun").is_some()
}

/// A new object with everything that the server gives it.
fn make(
    state: &mut State,
    resource: &'static Resource,
    place: &Place,
    mut body: Value,
    dry: bool,
) -> Result<Value, Box<Answer>> {
    let address = state.version();
    schema::fill_in(resource, &mut body, &mut || address);
    let causes = schema::problems(resource, &body, None);
    if !causes.is_empty() {
        return Err(Box::new(Answer::invalid(resource, &place.name, &causes)));
    }
    let identity = state.identity();
    let stamp = state.now.stamp.clone();
    let metadata = map_at(&mut body, &["metadata"]);
    for given in ["generation", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"] {
        metadata.remove(given);
    }
    metadata.insert("namespace".to_owned(), json!(place.namespace));
    metadata.insert("uid".to_owned(), json!(identity));
    metadata.insert("creationTimestamp".to_owned(), json!(stamp));
    if resource.generation != Generation::Never {
        metadata.insert("generation".to_owned(), json!(1));
    }
    if resource.has_status
        && let Some(body) = body.as_object_mut()
    {
        body.remove("status");
        match resource.kind {
            "Service" => {
                body.insert("status".to_owned(), json!({"loadBalancer": {}}));
            }
            "PodDisruptionBudget" => {
                let status =
                    json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
                body.insert("status".to_owned(), status);
            }
            "HorizontalPodAutoscaler" => {
                body.insert("status".to_owned(), json!({"desiredReplicas": 0}));
            }
            "Deployment" | "ReplicaSet" | "Pod" => {
                body.insert("status".to_owned(), json!({}));
            }
            _ => {}
        }
    }
    if dry {
        return Ok(body);
    }
    Ok((*state.put(place, body)).clone())
}

/// The order rule, when it is installed: the term on an object never falls.
fn order_rule(state: &State, place: &Place, old: Option<&Value>, new: &Value) -> Option<Answer> {
    let term = |object: &Value| annotation(object, TERM).and_then(|term| term.parse::<u64>().ok());
    let old = old.and_then(term)?;
    if !state.installed.contains("order-rule") || term(new).is_some_and(|new| new >= old) {
        return None;
    }
    let message = format!(
        "{} \"{}\" is forbidden: ValidatingAdmissionPolicy 'gco-term-order' with binding 'gco-term-order' denied request: \
         the leader's term is below the object's",
        place.resource().qualified(),
        place.name
    );
    Some(Answer::refusal(403, "Forbidden", &message, json!({"name": place.name, "kind": place.plural})))
}

fn replace(state: &mut State, place: &Place, request: &Request, of_status: bool) -> Answer {
    let resource = place.resource();
    let body = match body_of(resource, request) {
        Ok(body) => body,
        Err(answer) => return *answer,
    };
    if text(&body, "/metadata/name") != place.name {
        let message = format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            text(&body, "/metadata/name"),
            place.name
        );
        return Answer::bad_request(&message);
    }
    let uid = text(&body, "/metadata/uid");
    let Some(live) = state.get(place).cloned() else {
        if !resource.put_creates || of_status {
            return Answer::not_found(resource, &place.name);
        }
        if !uid.is_empty() {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
            return Answer::conflict(resource, &place.name, &why);
        }
        return match make(state, resource, place, body, dry(request)) {
            Ok(object) => Answer::of(201, shaped(&object, request)),
            Err(answer) => *answer,
        };
    };
    let live_uid = text(&live, "/metadata/uid");
    if !uid.is_empty() && uid != live_uid {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {live_uid}");
        return Answer::conflict(resource, &place.name, &why);
    }
    let version = text(&body, "/metadata/resourceVersion");
    if matches!(version, "" | "0") && resource.put_needs_version {
        return needs_version(resource, &place.name);
    }
    if !matches!(version, "" | "0") && version != text(&live, "/metadata/resourceVersion") {
        return stale(resource, &place.name);
    }
    update(state, place, &live, body, request, of_status)
}

/// 422 of an update without a version, where the kind wants one.
fn needs_version(resource: &Resource, name: &str) -> Answer {
    let cause = Cause {
        reason: "FieldValueInvalid",
        message: "Invalid value: 0: must be specified for an update".to_owned(),
        field: "metadata.resourceVersion".to_owned(),
    };
    let mut answer = Answer::invalid(resource, name, &[cause]);
    // Found below validation, which names the resource and not the kind.
    answer.body["details"]["kind"] = json!(resource.plural);
    answer
}

fn stale(resource: &Resource, name: &str) -> Answer {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    Answer::conflict(resource, name, why)
}

fn patch(state: &mut State, place: &Place, request: &Request, of_status: bool) -> Answer {
    let resource = place.resource();
    if request.content_type != "application/merge-patch+json" {
        let message = "the body of the request was in an unknown format - accepted media types include: \
                       application/json-patch+json, application/merge-patch+json";
        return Answer::refusal(415, "UnsupportedMediaType", message, json!({}));
    }
    let Some(live) = state.get(place).cloned() else { return Answer::not_found(resource, &place.name) };
    let Some(sent) = &request.body else { return Answer::bad_request("error decoding patch") };
    let mut merged = (*live).clone();
    merge(&mut merged, sent);
    let version = text(&merged, "/metadata/resourceVersion");
    if matches!(version, "" | "0") {
        if resource.put_needs_version {
            return needs_version(resource, &place.name);
        }
    } else if version != text(&live, "/metadata/resourceVersion") {
        return stale(resource, &place.name);
    }
    let as_body = Request { body: Some(merged), ..request.clone() };
    let body = match body_of(resource, &as_body) {
        Ok(body) => body,
        Err(answer) => return *answer,
    };
    if text(&body, "/metadata/uid") != text(&live, "/metadata/uid") {
        let cause = || Cause {
            reason: "FieldValueInvalid",
            message: "Invalid value: field is immutable".to_owned(),
            field: "metadata.uid".to_owned(),
        };
        return Answer::invalid(resource, &place.name, &[cause()]);
    }
    update(state, place, &live, body, request, of_status)
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Some(changes) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in changes {
        if value.is_null() {
            if let Some(target) = target.as_object_mut() {
                target.remove(name);
            }
        } else {
            merge(&mut target[name], value);
        }
    }
}

/// Stores `body` in the place of `live`, after all preconditions.
fn update(
    state: &mut State,
    place: &Place,
    live: &Value,
    mut body: Value,
    request: &Request,
    of_status: bool,
) -> Answer {
    let resource = place.resource();
    if of_status {
        let status = body.get("status").cloned();
        let annotations = body.pointer("/metadata/annotations").cloned();
        body = live.clone();
        body["status"] = status.unwrap_or_else(|| json!({}));
        if let Some(annotations) = annotations {
            body["metadata"]["annotations"] = annotations;
        }
    } else {
        carry_over(resource, live, &mut body);
        let address = state.version();
        schema::fill_in(resource, &mut body, &mut || address);
        let causes = schema::problems(resource, &body, Some(live));
        if !causes.is_empty() {
            return Answer::invalid(resource, &place.name, &causes);
        }
        let added = finalizers(&body).iter().any(|one| !finalizers(live).contains(one));
        if is_terminating(live) && added {
            let cause = Cause {
                reason: "FieldValueForbidden",
                message: "Forbidden: no new finalizers can be added if the object is being deleted".to_owned(),
                field: "metadata.finalizers".to_owned(),
            };
            return Answer::invalid(resource, &place.name, &[cause]);
        }
    }
    if let Some(refusal) = order_rule(state, place, Some(live), &body) {
        return refusal;
    }
    if body == *live {
        return Answer::of(200, shaped(live, request));
    }
    let changed = |pointer: &str| body.pointer(pointer) != live.pointer(pointer);
    let raised = match resource.generation {
        _ if of_status => false,
        Generation::Never => false,
        Generation::Spec => changed("/spec"),
        Generation::SpecOrAnnotations => changed("/spec") || changed("/metadata/annotations"),
    };
    if raised {
        body["metadata"]["generation"] = json!(crate::object::number(live, "/metadata/generation") + 1);
    }
    if dry(request) {
        return Answer::of(200, shaped(&body, request));
    }
    if is_terminating(&body) && finalizers(&body).is_empty() && resource.kind != "Pod" {
        // The last finalizer is gone, and with it the object: it is not written once more before.
        state.remove(place);
        return Answer::of(200, shaped(&body, request));
    }
    let object = state.put(place, body);
    Answer::of(200, shaped(&object, request))
}

/// What a replacement keeps of the live object, whatever it says itself.
fn carry_over(resource: &Resource, live: &Value, body: &mut Value) {
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "namespace",
    ] {
        let metadata = map_at(body, &["metadata"]);
        match live["metadata"].get(field) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
    if resource.has_status
        && let Some(map) = body.as_object_mut()
    {
        match live.get("status") {
            Some(status) => map.insert("status".to_owned(), status.clone()),
            None => map.remove("status"),
        };
    }
    if resource.kind == "Service" {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if let Some(value) = live["spec"].get(field) {
                map_at(body, &["spec"]).entry(field).or_insert_with(|| value.clone());
            }
        }
    }
}

fn delete(state: &mut State, place: &Place, request: &Request) -> Answer {
    let resource = place.resource();
    let Some(live) = state.get(place).cloned() else { return Answer::not_found(resource, &place.name) };
    let options = request.body.clone().unwrap_or_default();
    let kind = if resource.group.is_empty() {
        resource.kind.to_owned()
    } else {
        format!("{}.{}", resource.kind, resource.group)
    };
    let refused = |what: &str, asked: &str, is: &str, hint: &str| {
        let message = format!(
            "Operation cannot be fulfilled on {kind} \"{}\": the {what} in the precondition ({asked}) does not match the \
             {what} in record ({is}). The object might have been {hint}",
            place.name
        );
        let mut details = json!({"name": place.name, "kind": resource.kind});
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        Answer::refusal(409, "Conflict", &message, details)
    };
    let uid = text(&live, "/metadata/uid");
    let given = |name: &str| options.pointer(&format!("/preconditions/{name}")).and_then(Value::as_str);
    if let Some(asked) = given("uid")
        && asked != uid
    {
        return refused("UID", asked, uid, "deleted and then recreated");
    }
    let version = text(&live, "/metadata/resourceVersion");
    if let Some(asked) = given("resourceVersion")
        && asked != version
    {
        return refused("ResourceVersion", asked, version, "modified");
    }
    // Without a policy a deletion in the foreground that is under way goes on as one.
    let foreground = match text(&options, "/propagationPolicy") {
        "" => finalizers(&live).contains(&FOREGROUND),
        policy => policy == "Foreground",
    };
    let grace = options.get("gracePeriodSeconds").and_then(Value::as_u64);
    let ends_foreground = is_terminating(&live) && finalizers(&live) == [FOREGROUND] && !foreground;
    if ends_foreground && given("resourceVersion").is_some() && !dry(request) {
        // The server looks for its own last write here, which it did not make: such a deletion never gets through.
        let why = format!(
            "StorageError: invalid object, Precondition failed: ResourceVersion in precondition: , ResourceVersion in object \
             meta: {version}"
        );
        return Answer::conflict(resource, &place.name, &why);
    }
    let pending = if dry(request) || options.get("dryRun").is_some() {
        (foreground || !finalizers(&live).is_empty()).then(|| (*live).clone())
    } else {
        remove(state, place, foreground, grace)
    };
    match pending {
        Some(pending) => Answer::of(200, shaped(&pending, request)),
        // A Service's deletion is answered with the Service.
        None if resource.kind == "Service" => {
            let last = state.history().iter().rev().find(|entry| entry.place == *place);
            let last = last.map_or_else(|| (*live).clone(), |entry| (*entry.object).clone());
            Answer::of(200, shaped(&last, request))
        }
        None => {
            let mut details = json!({"name": place.name, "kind": resource.plural, "uid": uid});
            if !resource.group.is_empty() {
                details["group"] = json!(resource.group);
            }
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
            Answer::of(200, status)
        }
    }
}

/// Begins a deletion, or does it when nothing keeps the object; returns it while it is pending.
pub fn remove(state: &mut State, place: &Place, foreground: bool, grace: Option<u64>) -> Option<Value> {
    let resource = place.resource();
    let live = state.get(place).cloned()?;
    let mut object = (*live).clone();
    let kept: Vec<String> =
        finalizers(&object).into_iter().filter(|one| *one != FOREGROUND).map(str::to_owned).collect();
    let mut finalizers = kept;
    if foreground {
        finalizers.push(FOREGROUND.to_owned());
    }
    // A pod on a node has its grace to end; the kubelet deletes it for good.
    let bound = resource.kind == "Pod" && !text(&object, "/spec/nodeName").is_empty();
    let seconds = match (bound, grace) {
        (false, _) => 0,
        (true, Some(seconds)) => seconds,
        (true, None) => object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_u64).unwrap_or(30),
    };
    if finalizers.is_empty() && seconds == 0 {
        state.remove(place);
        return None;
    }
    if is_terminating(&object) && crate::object::finalizers(&object) == finalizers {
        return Some(object);
    }
    let stamp = state.now.stamp.clone();
    let metadata = map_at(&mut object, &["metadata"]);
    if !metadata.contains_key("deletionTimestamp") {
        metadata.insert("deletionTimestamp".to_owned(), json!(stamp));
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(seconds));
        if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
            metadata.insert("generation".to_owned(), json!(generation + 1));
        }
    }
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), json!(finalizers));
    }
    Some((*state.put(place, object)).clone())
}
