//! Plays a global table: descriptions with replicas, and a copy that lags behind what is written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::decision::{Answer, Decision};
use super::facts::RequestFacts;

/// Which consistency a global table's description names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaConsistency {
    /// None: descriptions of older tables.
    Unnamed,
    /// `EVENTUAL`
    Eventual,
    /// `STRONG`
    Strong,
    /// A word that nobody knows yet.
    Other,
}

impl ReplicaConsistency {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Unnamed, Self::Eventual, Self::Strong, Self::Other];

    fn word(self) -> Option<&'static str> {
        match self {
            Self::Unnamed => None,
            Self::Eventual => Some("EVENTUAL"),
            Self::Strong => Some("STRONG"),
            Self::Other => Some("SOMETHING_NEW"),
        }
    }
}

/// Makes a table look like one with replicas in these regions: the decision for a `DescribeTable`.
pub fn described_with_replicas(regions: &[&str], consistency: ReplicaConsistency) -> Decision {
    let replicas: Vec<serde_json::Value> =
        regions.iter().map(|region| serde_json::json!({"RegionName": region, "ReplicaStatus": "ACTIVE"})).collect();
    Decision::rewrite(move |mut answer| {
        let Ok(mut body) = serde_json::from_slice::<serde_json::Value>(&answer.body) else { return answer };
        if body.get("Table").is_none() {
            return answer;
        }
        body["Table"]["Replicas"] = replicas.into();
        if let Some(word) = consistency.word() {
            body["Table"]["MultiRegionConsistency"] = word.into();
        }
        answer.body = body.to_string().into();
        answer
    })
}

/// Answers by operation and request.
type Recorded = HashMap<(String, Bytes), Answer>;

/// A copy of the table that stops following. Clones are the same copy.
///
/// While it lags, each distinct read (by operation and body) is answered as it was when it was first made since: reads that
/// ask for strong consistency included, as a replica's are strong for its own copy only. Writes reach the table, and their
/// conditions are judged there.
#[derive(Clone, Debug, Default)]
pub struct LaggingCopy {
    answers: Arc<Mutex<Option<Recorded>>>,
}

impl LaggingCopy {
    /// A copy that follows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops following, and forgets what it answered before.
    pub fn lag(&self) {
        *self.lock() = Some(HashMap::new());
    }

    /// Follows again.
    pub fn catch_up(&self) {
        *self.lock() = None;
    }

    /// The decision for a request.
    pub fn decide(&self, request: &RequestFacts) -> Decision {
        let Some(operation) = request.dynamodb_operation.clone().filter(|_| !request.is_write()) else {
            return Decision::Forward;
        };
        let key = (operation, request.body.clone());
        match self.lock().as_ref() {
            None => return Decision::Forward,
            Some(answers) => {
                if let Some(answer) = answers.get(&key) {
                    return Decision::AnswerInstead(answer.clone());
                }
            }
        }
        let copy = self.clone();
        Decision::rewrite(move |answer| {
            if let Some(answers) = copy.lock().as_mut().filter(|_| answer.status.is_success()) {
                // The first of several reads under way at once is the one that is kept.
                return answers.entry(key).or_insert(answer).clone();
            }
            answer
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<HashMap<(String, Bytes), Answer>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
