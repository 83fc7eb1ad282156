//! Whether the cluster's admission policies refuse what a deposed leader would write: asked by dry runs, which change nothing.

use http::Method;
use serde_json::{Value, json};

use super::Cluster;
use super::api::{Api, Call, FIELD_MANAGER, resource};
use super::error::{ApiError, Refusal};
use crate::identity::{ANNOTATION_LEADER_TERM, LABEL_PROJECT, LABEL_TYPE};
use crate::leadership::Claim;
use crate::object::{Kind, ObservedObject};
use crate::report::Category;

/// Name of the object that the test of the Lease rule pretends to create.
const NEVER_CREATED: &str = "inference-monitor-fence-test";

/// One of the fence's two policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A write's term is no older than the one stored on the object.
    Order,
    /// A write's term is no older than the Lease's.
    Lease,
}

impl Rule {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Order, Self::Lease];

    /// The word of metrics and logs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Lease => "lease",
        }
    }

    /// The name of its policy and of its binding.
    #[must_use]
    pub fn policy(self) -> &'static str {
        match self {
            Self::Order => "gco-term-order",
            Self::Lease => "gco-term-lease",
        }
    }
}

impl Cluster {
    /// Whether a rule is bound in this cluster.
    ///
    /// # Errors
    /// Whatever the server refuses but absence.
    pub(crate) async fn is_bound(&self, rule: Rule) -> Result<bool, ApiError> {
        let path = format!("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{}", rule.policy());
        let call = Call {
            verb: "get",
            resource: "validatingadmissionpolicybindings",
            method: Method::GET,
            path: &path,
            body: None,
            accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            time_out: self.api.time_out(),
        };
        match self.api.call(call).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// An object of ours with a term on it that could be older: what the order rule can be tested on.
    pub(crate) fn a_stamped_object(&self) -> Option<(ObservedObject, u64)> {
        let (object, term) = self.caches.newest_stamped()?;
        (term > 0 && !object.terminating).then_some((object, term))
    }

    /// Whether the order rule refuses to update `object` with a term one older than the one on it. The Lease rule leaves
    /// dry runs of updates alone, so no other rule answers for it.
    ///
    /// # Errors
    /// Whatever else the server refuses, absence too.
    pub(crate) async fn refuses_older_update(
        &self,
        claim: &Claim,
        object: &ObservedObject,
        term: u64,
    ) -> Result<bool, ApiError> {
        let (prefix, plural) = resource(object.key.kind);
        let path = format!(
            "{prefix}/namespaces/{}/{plural}/{}?dryRun=All&fieldManager={FIELD_MANAGER}",
            self.api.namespace(),
            object.key.name
        );
        let older = term.saturating_sub(1).to_string();
        let body = json!({"metadata": {"uid": object.uid, "annotations": {ANNOTATION_LEADER_TERM: older}}});
        let call = Call {
            verb: "patch",
            resource: plural,
            method: Method::PATCH,
            path: &path,
            body: Some(("application/merge-patch+json", &body)),
            accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            time_out: self.api.time_out(),
        };
        refuses(&self.api, claim, Rule::Order, call).await
    }

    /// Whether the Lease rule refuses to create an object with a term one older than ours.
    ///
    /// # Errors
    /// Whatever else the server refuses.
    pub(crate) async fn refuses_older_create(&self, claim: &Claim) -> Result<bool, ApiError> {
        let (prefix, plural) = resource(Kind::Service);
        let path =
            format!("{prefix}/namespaces/{}/{plural}?dryRun=All&fieldManager={FIELD_MANAGER}", self.api.namespace());
        let older = claim.mark().term.saturating_sub(1).to_string();
        let body = never_created(&older);
        let call = Call {
            verb: "create",
            resource: plural,
            method: Method::POST,
            path: &path,
            body: Some(("application/json", &body)),
            accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            time_out: self.api.time_out(),
        };
        refuses(&self.api, claim, Rule::Lease, call).await
    }
}

/// A Service that nobody ever sees: without selector and address, and only ever sent in a dry run.
fn never_created(term: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": NEVER_CREATED,
            "labels": {LABEL_PROJECT.0: LABEL_PROJECT.1, LABEL_TYPE.0: LABEL_TYPE.1},
            "annotations": {ANNOTATION_LEADER_TERM: term},
        },
        "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]},
    })
}

async fn refuses(api: &Api, claim: &Claim, rule: Rule, call: Call<'_>) -> Result<bool, ApiError> {
    // A leader whose claim is over would be told of its successor's term, which says nothing about the rules.
    claim.check().map_err(|over| ApiError::unanswered(Category::Fenced, &over.to_string()))?;
    match api.call_expecting(call, |error| error.refusal == Refusal::StaleTerm).await {
        Ok(_) => Ok(false),
        Err(error) if error.refusal == Refusal::StaleTerm => Ok(error.message.contains(rule.policy())),
        Err(error) => Err(error),
    }
}
