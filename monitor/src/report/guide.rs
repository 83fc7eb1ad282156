//! What to do about each error code and each reason of a condition: the source of the errors' page and of
//! `gco inference explain`. Pure.

use super::codes::{self, Code};

/// One code, explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guide {
    /// `GCO-…`
    pub code: &'static str,
    /// A few words.
    pub title: &'static str,
    /// What serves meanwhile.
    pub meanwhile: &'static str,
    /// What to do, in order.
    pub steps: &'static [&'static str],
}

/// Every code in the order of the page; a test holds it against [`codes::ALL`].
pub const GUIDES: &[Guide] = &[
    Guide {
        code: "GCO-1001",
        title: "the spec breaks the schema",
        meanwhile: "Pods of the last good spec go on serving; nothing of the endpoint is touched.",
        steps: &[
            "Read the fields that the text names (`gco inference status NAME`).",
            "Correct them: `gco inference set NAME …`, or `gco inference edit NAME`.",
            "If the last edit was a mistake altogether: `gco inference undo NAME`.",
        ],
    },
    Guide {
        code: "GCO-1002",
        title: "a block of the spec is not served by this version",
        meanwhile: "Nothing of the endpoint is touched: what runs goes on.",
        steps: &[
            "Look which block the text names.",
            "Leave the endpoint to the control plane that made it, or take the block away: `gco inference edit NAME`.",
        ],
    },
    Guide {
        code: "GCO-1003",
        title: "two endpoints could own objects of the same name",
        meanwhile: "The endpoint whose name is derived from the other's is not acted upon; the other is served.",
        steps: &[
            "Deploy the endpoint that is named under another name (names that end in `-canary`, `-proxy` … collide).",
            "When it serves, delete the colliding one: `gco inference delete NAME`.",
        ],
    },
    Guide {
        code: "GCO-1004",
        title: "the row asks for another namespace",
        meanwhile: "Nothing of the endpoint is touched.",
        steps: &["Deploy the endpoint again, without a namespace, and delete this row."],
    },
    Guide {
        code: "GCO-1101",
        title: "the API server refuses an object",
        meanwhile: "What was there before goes on serving.",
        steps: &[
            "Read the server's words: they name the field of the object.",
            "Correct the field of the spec that it comes from: `gco inference set NAME …`.",
            "If no field of yours is named, look whether an admission webhook or policy of the cluster refuses it.",
        ],
    },
    Guide {
        code: "GCO-1102",
        title: "the monitor lacks a right",
        meanwhile: "What was there before goes on serving; nothing more is changed.",
        steps: &[
            "Compare the Role in the cluster with `deploy/monitor/role.yaml` of the monitor's version.",
            "If the words name an admission policy, look whether the region's policies are of the same version.",
        ],
    },
    Guide {
        code: "GCO-1103",
        title: "an unexpected failure",
        meanwhile: "What was there before goes on serving; the endpoint is tried again with growing waits.",
        steps: &[
            "Look at the monitor's log around the time of the entry (`endpoint`, `action`).",
            "Report it, with these lines.",
        ],
    },
    Guide {
        code: "GCO-1201",
        title: "an object that is not ours has one of the endpoint's names",
        meanwhile: "Everything else of the endpoint goes on.",
        steps: &[
            "Look whose it is: `kubectl -n gco-inference get KIND NAME -o yaml` (`blocked_by` names it).",
            "Delete or rename it; the endpoint goes on within a minute.",
        ],
    },
    Guide {
        code: "GCO-1202",
        title: "an object of another endpoint has one of the endpoint's names",
        meanwhile: "Neither endpoint's objects are touched for the other's sake.",
        steps: &[
            "Decide which of the two endpoints keeps the name, and delete the other: `gco inference delete NAME`.",
        ],
    },
    Guide {
        code: "GCO-1204",
        title: "a write has no effect",
        meanwhile: "What is there goes on serving; the write is not repeated.",
        steps: &[
            "Look what changes the object back: a mutating webhook, or another controller (`kubectl … -o yaml --show-managed-fields`).",
            "Stop it, or take the field out of the spec; then edit the endpoint, or ask for a full pass.",
        ],
    },
    Guide {
        code: "GCO-1301",
        title: "the image cannot be pulled",
        meanwhile: "No pod of this region serves.",
        steps: &[
            "Check the image's name and tag: `gco inference status NAME` shows the registry's words.",
            "A private registry needs a pull secret: `gco inference set NAME --image-pull-secret SECRET`.",
            "Back to the image of before: `gco inference undo NAME`.",
        ],
    },
    Guide {
        code: "GCO-1302",
        title: "no node takes the pod",
        meanwhile: "No pod of this region serves.",
        steps: &[
            "Read the scheduler's words: they count what each node lacks.",
            "Too few accelerators: wait for the node pool, or ask for fewer (`gco inference set NAME --gpu-count N`).",
            "No node with the label: `gco inference set NAME --unset-node-selector KEY`.",
        ],
    },
    Guide {
        code: "GCO-1303",
        title: "the model server keeps ending",
        meanwhile: "No pod of this region serves.",
        steps: &[
            "Look at the log of the run before: `kubectl -n gco-inference logs POD --previous`.",
            "Correct arguments or environment: `gco inference set NAME …`; or go back: `gco inference undo NAME`.",
        ],
    },
    Guide {
        code: "GCO-1304",
        title: "the model server runs out of memory",
        meanwhile: "No pod of this region serves.",
        steps: &[
            "Raise the limit: `gco inference set NAME --limit memory=…`.",
            "Or make the model need less: shorter contexts, a smaller batch, fewer weights.",
        ],
    },
    Guide {
        code: "GCO-1305",
        title: "the container cannot be started",
        meanwhile: "No pod of this region serves.",
        steps: &[
            "Read the kubelet's words: a missing Secret or key, a bad command, a missing mount.",
            "A Secret that is named must be in the endpoints' namespace: `kubectl -n gco-inference get secret`.",
        ],
    },
    Guide {
        code: "GCO-1401",
        title: "a rollout makes no progress",
        meanwhile: "Pods of before go on serving, where there are any.",
        steps: &[
            "Look why the new pods are not ready: `gco inference status NAME`.",
            "A model that takes longer to load: `gco inference set NAME --startup-timeout-seconds N`.",
            "Go back: `gco inference undo NAME`.",
        ],
    },
    Guide {
        code: "GCO-1402",
        title: "the cluster refuses to make pods",
        meanwhile: "Pods that are there go on serving.",
        steps: &["Read the words: a quota, a missing service account, or an admission webhook."],
    },
];

/// What is known of a code; `None` for a text that begins with none of ours.
#[must_use]
pub fn of_error(error: &str) -> Option<(&'static Guide, Code)> {
    let code = error.split(':').next()?.trim();
    let guide = GUIDES.iter().find(|guide| guide.code == code)?;
    let known = codes::ALL.iter().find(|known| known.code == code)?;
    Some((guide, *known))
}

/// A condition in words: what it says and, if something is to be done, the next step. `None` for one that is as it should
/// be, or that this version does not know.
#[must_use]
pub fn of_condition(kind: &str, holds: bool, reason: &str) -> Option<(&'static str, &'static str)> {
    Some(match (kind, holds, reason) {
        ("Ready", true, "FewerPodsThanAsked") => {
            ("It serves, with fewer pods than asked for.", "Wait, or look at the pods that are not ready.")
        }
        ("Ready", false, "PodsNotReady") => {
            ("It does not serve: no pod is ready.", "Wait while the model loads, or look at the pods' reasons.")
        }
        ("Ready", false, "NoPods") => ("It does not serve: there are no pods yet.", "Wait a moment."),
        ("Ready", false, "Stopping") => ("Its pods are being stopped, as asked.", "Nothing."),
        ("Ready", false, "Stopped") => ("It has no pods, as asked.", "`gco inference start NAME` brings it back."),
        ("SpecValid", false, _) => {
            ("Its spec breaks the schema.", "Correct the fields that are named: `gco inference edit NAME`.")
        }
        ("SpecValid", true, "FieldsWithoutEffect") => {
            ("Some fields of its spec change nothing.", "Remove them, if they were meant to do something.")
        }
        ("Accepted", false, _) => {
            ("This region does not act upon it as it is.", "See the error's page for the reason.")
        }
        ("RolledOut", false, "InProgress") => ("A rollout is under way.", "Wait; old pods serve meanwhile."),
        ("RolledOut", false, "NoDeployment") => ("Its Deployment is not there yet.", "Wait a moment."),
        ("RolledOut", false, _) => {
            ("A rollout cannot go on.", "Look at the new pods' reasons, or go back: `gco inference undo NAME`.")
        }
        ("CanaryReady", false, _) => (
            "Its canary gets no requests: not all of the canary's pods are ready.",
            "Wait, or look at the canary's pods; `gco inference rollback NAME` ends it.",
        ),
        ("Autoscaling", false, _) => (
            "Its autoscaler does not work; the replica count stays as it is.",
            "Look at the metric that is named; without KEDA in the cluster, scale by cpu or memory.",
        ),
        ("TemplateCurrent", false, _) => (
            "Its pods run what an earlier program or version rendered, and serve on.",
            "Nothing; `gco inference refresh NAME` brings them up to date.",
        ),
        ("RestartHeld", true, _) => (
            "A restart that no edit asked for is held back.",
            "Wait for its turn; if restarts have stopped, look why some failed, then `gco inference refresh --clear`.",
        ),
        ("Blocked", true, "OtherEndpoint") => {
            ("An object of another endpoint has one of its names.", "Delete one of the two endpoints.")
        }
        ("Blocked", true, _) => {
            ("An object that is not ours has one of its names.", "Delete or rename the object that is named.")
        }
        ("Progressing", true, "TableAway") => {
            ("Nothing is removed while the table cannot be read.", "Look at the table's service.")
        }
        ("Progressing", true, "Terminating") => {
            ("An earlier object is still being deleted.", "Wait; if it stays, look at its finalizers.")
        }
        ("Progressing", true, _) => ("Something is awaited.", "Wait."),
        ("Reconciled", false, "WriteWithoutEffect") => {
            ("A write has no effect: something changes it back.", "Look which webhook or controller does.")
        }
        ("Reconciled", false, "Invalid") => ("The API server refuses an object.", "Correct the field that is named."),
        ("Reconciled", false, "Forbidden") => {
            ("The monitor lacks a right.", "Compare the installed Role with the monitor's version.")
        }
        ("Reconciled", false, "Unexpected") => ("Something failed that should not.", "Look at the monitor's log."),
        ("Reconciled", false, _) => ("The cluster could not be reached or was busy.", "Wait: it is tried again."),
        ("Paused", true, _) => {
            ("Changes are paused here.", "`gco inference resume NAME`, or `gco inference unfreeze REGION`.")
        }
        ("Removed", false, _) => ("It is being removed.", "Wait: absence is proved twice."),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_explained_in_order_and_with_a_step() {
        let explained: Vec<&str> = GUIDES.iter().map(|guide| guide.code).collect();
        let mut known: Vec<&str> = codes::ALL.iter().map(|code| code.code).collect();
        known.sort_unstable();
        assert_eq!(explained, known);
        for guide in GUIDES {
            assert!(
                !guide.steps.is_empty() && !guide.title.is_empty() && !guide.meanwhile.is_empty(),
                "{}",
                guide.code
            );
        }
    }

    #[test]
    fn an_error_text_leads_to_its_guide() {
        assert_eq!(of_error("GCO-1302: Unschedulable: 0/3 nodes").map(|(guide, _)| guide.code), Some("GCO-1302"));
        assert_eq!(of_error("endpoint spec must be a mapping"), None);
    }
}
