//! Carries a plan out, step by step, every step fenced.
//!
//! One object that refuses does not stop the others (D-22). A conflict is followed by a look at that object, so that the
//! caller can plan again from what is really there (D-57).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gco_runtime::clock::BootTime;
use serde_json::{Value, json};

use super::Cluster;
use super::api::Deleted;
use super::error::{ApiError, Refusal};
use super::reduce;
use crate::leadership::Claim;
use crate::object::{ObjectKey, ObservedObject};
use crate::plan::{Plan, Precondition, Step, digest};
use crate::report::{Category, Done, Failure};

/// What [`Cluster::execute`] needs.
pub struct ExecuteInput<'a> {
    /// What to do. Absence is proven separately, by [`Cluster::prove_absence`].
    pub plan: &'a Plan,
    /// The right to do it.
    pub claim: &'a Claim,
    /// When the row's authority must be read again; `None` while the table is away.
    pub authority_until: Option<BootTime>,
    /// Now, for `authority_until`.
    pub now: &'a (dyn Fn() -> BootTime + Send + Sync),
}

impl std::fmt::Debug for ExecuteInput<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ExecuteInput").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// A replacement that was accepted: what it asked for, and what it left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Digest of the body that was sent.
    pub digest: String,
    /// Version after it.
    pub resource_version: String,
}

/// What became of a plan. Only this room makes one.
#[derive(Debug, Default)]
pub struct Applied {
    done: Done,
    replaced: BTreeMap<ObjectKey, Replaced>,
    plan_again: bool,
    retry_after: Option<Duration>,
    fenced: bool,
    stale_term: bool,
    authority_over: bool,
}

impl Applied {
    /// The part that is reported.
    #[must_use]
    pub fn done(&self) -> &Done {
        &self.done
    }

    /// Replacements that the server accepted, for telling futile ones.
    #[must_use]
    pub fn replaced(&self) -> &BTreeMap<ObjectKey, Replaced> {
        &self.replaced
    }

    /// Something was not as planned for; planning again from the newer observation may succeed.
    #[must_use]
    pub fn plan_again(&self) -> bool {
        self.plan_again
    }

    /// How long the server asked to wait.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The claim ended; nothing may be reported.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// An admission policy took us for a deposed leader.
    #[must_use]
    pub fn is_stale_term(&self) -> bool {
        self.stale_term
    }

    /// The row must be read again before going on.
    #[must_use]
    pub fn is_authority_over(&self) -> bool {
        self.authority_over
    }

    fn fail(&mut self, key: &ObjectKey, error: &ApiError) {
        // The report puts the object's name in front of the message.
        let failure = Failure { key: Some(key.clone()), category: error.category, message: error.message.clone() };
        self.done.failures.push(failure);
    }
}

/// Whether the rest of the plan can go on after a failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// With other objects.
    Others,
    /// Not at all.
    Nothing,
}

impl Cluster {
    /// Carries out a plan's steps on objects, in order.
    pub async fn execute(&self, input: &ExecuteInput<'_>) -> Applied {
        let mut applied = Applied::default();
        applied.done.obstacles.clone_from(&input.plan.obstacles);
        let mut refused: BTreeSet<&ObjectKey> = BTreeSet::new();
        for step in &input.plan.steps {
            let Some(key) = step.key().filter(|key| !refused.contains(key)) else { continue };
            if input.authority_until.is_some_and(|until| (input.now)() >= until) {
                applied.authority_over = true;
                applied.plan_again = true;
                break;
            }
            let (verb, reason, result) = self.execute_one(step, input.claim, &mut applied).await;
            match result {
                Ok(()) => {
                    self.api.telemetry().steps.with_label_values(&[verb]).inc();
                    tracing::info!(action = verb, object = %key, reason, "changed an object");
                    applied.done.steps.push(format!("{verb} {key}: {reason}"));
                }
                Err(error) => {
                    tracing::info!(
                        action = verb,
                        object = %key,
                        reason,
                        category = crate::admin::telemetry::category_word(error.category),
                        error = %error,
                        "a change was refused"
                    );
                    refused.insert(key);
                    if self.after_failure(key, &error, &mut applied).await == Next::Nothing {
                        break;
                    }
                }
            }
        }
        applied
    }

    async fn execute_one<'s>(
        &self,
        step: &'s Step,
        claim: &Claim,
        applied: &mut Applied,
    ) -> (&'static str, &'s str, Result<(), ApiError>) {
        match step {
            Step::Create { key, body, reason } => {
                let result = self.api.create(claim, key, body).await;
                ("create", reason, result.map(|answer| self.remember(key, answer)))
            }
            Step::Replace { key, body, reason, of: _, restarts: _, unasked: _, scales_down: _ } => {
                let result = self.api.replace(claim, key, body).await.map(|answer| {
                    let version = answer.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                    let replaced =
                        Replaced { digest: digest(body), resource_version: version.unwrap_or_default().to_owned() };
                    applied.replaced.insert(key.clone(), replaced);
                    self.remember(key, answer);
                });
                ("update", reason, result)
            }
            Step::Stamp { key, of, annotations, reason } => {
                let result = self.api.annotate(claim, key, of, &json!(annotations)).await;
                ("stamp", reason, result.map(|answer| self.remember(key, answer)))
            }
            Step::Delete { key, of, reason } => ("delete", reason, self.claim_and_delete(claim, key, of).await),
            Step::ProveAbsence => ("prove_absence", "", Ok(())),
        }
    }

    /// Stamps our term on the object, then deletes exactly that version: whoever led before us holds an older version, so
    /// neither its delete nor its write can come in between (the admission policy cannot order bare deletes).
    pub(super) async fn claim_and_delete(
        &self,
        claim: &Claim,
        key: &ObjectKey,
        of: &Precondition,
    ) -> Result<(), ApiError> {
        let annotations = json!(claim.mark().annotations());
        let stamped = match self.api.annotate(claim, key, of, &annotations).await {
            Ok(stamped) => stamped,
            Err(error) if error.is_not_found() => {
                self.caches.forget(key, &of.uid);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let Some(version) = stamped.pointer("/metadata/resourceVersion").and_then(Value::as_str) else {
            return Err(ApiError::unanswered(Category::Unavailable, "the stamped object has no version"));
        };
        let of = Precondition { uid: of.uid.clone(), resource_version: version.to_owned() };
        self.remember(key, stamped);
        match self.api.delete(claim, key, &of).await? {
            Deleted::Gone => self.caches.forget(key, &of.uid),
            Deleted::Pending(object) => self.remember(key, object),
        }
        Ok(())
    }

    async fn after_failure(&self, key: &ObjectKey, error: &ApiError, applied: &mut Applied) -> Next {
        if error.refusal == Refusal::StaleTerm {
            applied.stale_term = true;
            applied.fenced = true;
            return Next::Nothing;
        }
        match error.category {
            Category::Fenced => {
                applied.fenced = true;
                Next::Nothing
            }
            Category::Conflict => {
                applied.fail(key, error);
                applied.plan_again = true;
                match self.look_again(key).await {
                    Ok(()) => Next::Others,
                    Err(error) => {
                        applied.fail(key, &error);
                        applied.retry_after = error.retry_after;
                        Next::Nothing
                    }
                }
            }
            Category::Throttled | Category::Unavailable => {
                // The next object would fare the same, at the cost of another time-out.
                applied.fail(key, error);
                applied.plan_again = true;
                applied.retry_after = error.retry_after;
                Next::Nothing
            }
            Category::Invalid | Category::Forbidden | Category::Bug => {
                applied.fail(key, error);
                Next::Others
            }
        }
    }

    /// Reads one object and lays the answer over the cache.
    async fn look_again(&self, key: &ObjectKey) -> Result<(), ApiError> {
        match self.api.get(key).await? {
            Some(body) => self.remember(key, body),
            None => {
                let known = self.caches.uid_of(key);
                if let Some(uid) = known {
                    self.caches.forget(key, &uid);
                }
            }
        }
        Ok(())
    }

    fn remember(&self, key: &ObjectKey, body: Value) {
        if let Some(object) = observed(key, body) {
            self.caches.remember(object);
        }
    }
}

/// An answer as an observation.
pub(super) fn observed(key: &ObjectKey, body: Value) -> Option<ObservedObject> {
    reduce::object(key.kind, body)
}
