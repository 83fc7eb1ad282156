//! Codes of error texts in a status entry: stable, so that a page, a search or an alarm can refer to them.

use gco_store::problem::bounded;

/// Longest error text, in characters.
pub use gco_store::status::LONGEST_ERROR_CHARACTERS as LONGEST_ERROR;

/// One code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// `GCO-` and four digits: 10 the row, 11 the API server's answers, 12 objects in the way, 13 pods, 14 rollouts,
    /// 15 clean-up.
    pub code: &'static str,
    /// What it means and what to do, in one sentence or two.
    pub meaning: &'static str,
}

/// The spec breaks the schema.
pub const INVALID_SPEC: Code = Code {
    code: "GCO-1001",
    meaning: "The row's spec breaks the schema. Every bad field is named; correct them with an edit of the endpoint.",
};
/// A block that this version does not serve.
pub const NOT_YET_SUPPORTED: Code = Code {
    code: "GCO-1002",
    meaning: "The spec uses a block that this version does not serve yet. Nothing of the endpoint is touched.",
};
/// Names collide.
pub const NAME_COLLISION: Code = Code {
    code: "GCO-1003",
    meaning: "Objects of another endpoint could have the same names. Delete one of the two endpoints.",
};
/// Wrong namespace.
pub const WRONG_NAMESPACE: Code = Code {
    code: "GCO-1004",
    meaning: "The row asks for a namespace in which this monitor has no rights. Deploy the endpoint without one.",
};
/// The API server refuses the content.
pub const REFUSED: Code = Code {
    code: "GCO-1101",
    meaning: "The API server refuses an object as it was rendered. Its words name the field; correct the spec.",
};
/// Missing rights.
pub const FORBIDDEN: Code = Code {
    code: "GCO-1102",
    meaning: "The monitor lacks rights, or an admission policy refuses it. Compare the installed Role with the manifests.",
};
/// A fault of the monitor.
pub const UNEXPECTED: Code = Code {
    code: "GCO-1103",
    meaning: "Something happened that should not. The monitor's log has the details; please report it.",
};
/// A foreign object has our name.
pub const FOREIGN_OBJECT: Code = Code {
    code: "GCO-1201",
    meaning: "An object that is not ours has a name that the endpoint needs. Delete or rename it.",
};
/// Another endpoint's object has our name.
pub const OTHER_ENDPOINT: Code = Code {
    code: "GCO-1202",
    meaning: "An object of another endpoint has a name that this endpoint needs. Delete one of the two endpoints.",
};
/// A write that changes nothing.
pub const WRITE_WITHOUT_EFFECT: Code = Code {
    code: "GCO-1204",
    meaning: "The API server accepts a write and changes nothing, or something changes it back. The write is not repeated.",
};
/// The image cannot be pulled.
pub const IMAGE: Code = Code {
    code: "GCO-1301",
    meaning: "No pod serves because the image cannot be pulled. Check its name, its tag and the registry's permissions.",
};
/// No node takes the pod.
pub const UNSCHEDULABLE: Code = Code {
    code: "GCO-1302",
    meaning: "No pod serves because no node takes one. The scheduler's words name what is missing.",
};
/// The model server ends by itself.
pub const CRASHING: Code = Code {
    code: "GCO-1303",
    meaning: "No pod serves because the model server keeps ending. Look at the pod's log of the previous run.",
};
/// The model server runs out of memory.
pub const OUT_OF_MEMORY: Code = Code {
    code: "GCO-1304",
    meaning: "No pod serves because the container exceeds its memory limit. Raise the limit or shrink the model.",
};
/// The container cannot be started.
pub const CONTAINER: Code = Code {
    code: "GCO-1305",
    meaning: "No pod serves because the container cannot be started. The kubelet's words say why.",
};
/// A rollout makes no progress.
pub const ROLLOUT_STUCK: Code = Code {
    code: "GCO-1401",
    meaning: "A rollout makes no progress: new pods do not become ready in time. Pods of before go on serving, where there are any.",
};
/// Pods cannot be created.
pub const PODS_REFUSED: Code = Code {
    code: "GCO-1402",
    meaning: "The cluster refuses to create pods, for example for a quota or a missing service account.",
};

/// All codes, for the reference page.
pub const ALL: [Code; 17] = [
    INVALID_SPEC,
    NOT_YET_SUPPORTED,
    NAME_COLLISION,
    WRONG_NAMESPACE,
    REFUSED,
    FORBIDDEN,
    UNEXPECTED,
    FOREIGN_OBJECT,
    OTHER_ENDPOINT,
    WRITE_WITHOUT_EFFECT,
    IMAGE,
    UNSCHEDULABLE,
    CRASHING,
    OUT_OF_MEMORY,
    CONTAINER,
    ROLLOUT_STUCK,
    PODS_REFUSED,
];

impl Code {
    /// The error text: code, then the message without control characters, cut.
    #[must_use]
    pub fn text(&self, message: &str) -> String {
        bounded(&format!("{}: {message}", self.code), LONGEST_ERROR)
    }
}
