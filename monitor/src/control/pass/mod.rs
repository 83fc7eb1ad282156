//! One pass over one endpoint: decide, render, observe, plan, act under authority, report.
//!
//! At rest a pass is computation only: no call to the cluster, none to the table.

mod absence;
mod reconcile;
mod table;

use std::time::Duration;

use gco_store::problem::joined;
use gco_store::row::DesiredState;

use super::action::intent_word;
use super::queue::Ended;
use super::rows::Held;
use super::shared::{LastPass, Memory, Shared};
use crate::admin::telemetry::category_word;
use crate::intent::Intent;
use crate::leadership::Claim;
use crate::report::{Category, Done, Failure};

/// How often a pass decides anew because its row changed under it. Every region's status write changes the row.
const MOST_DECISIONS: usize = 6;

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PassEnd {
    /// Word of the passes' metric.
    pub(super) outcome: &'static str,
    /// For the queue.
    pub(super) ended: Ended,
}

impl PassEnd {
    const REST: Self = Self { outcome: "rest", ended: Ended::Rest };

    fn failed(category: Category) -> Self {
        Self::failed_for(category, Duration::ZERO)
    }

    fn failed_for(category: Category, least: Duration) -> Self {
        Self { outcome: category_word(category), ended: Ended::Failed { category, least } }
    }

    fn waiting(wait: Duration) -> Self {
        Self { outcome: "waiting", ended: Ended::Again(wait) }
    }
}

/// What follows a step of a pass.
enum Turn {
    /// The row changed: decide anew.
    Decide,
    /// The pass is over.
    End(PassEnd),
}

/// One pass under way.
struct Pass<'a> {
    shared: &'a Shared,
    name: &'a str,
    claim: &'a Claim,
    memory: Memory,
    /// An object or the row was changed.
    changed: bool,
    intent: &'static str,
    done: Done,
}

/// Makes one pass. The endpoint's memory is put back even when the row is gone.
pub(super) async fn run(shared: &Shared, name: &str, claim: &Claim) -> PassEnd {
    let mut pass = Pass {
        shared,
        name,
        claim,
        memory: shared.take_memory(name),
        changed: false,
        intent: "none",
        done: Done::default(),
    };
    let began = shared.now();
    let end = pass.turns().await;
    shared.restarts.release(name);
    let Pass { mut memory, intent, done, .. } = pass;
    match end.ended {
        // Fenced is no failure of the endpoint's: it is the next leader's.
        Ended::Failed { category, .. } if category != Category::Fenced => {
            memory.failures = memory.failures.saturating_add(1);
        }
        Ended::Failed { .. } => {}
        Ended::Rest | Ended::Again(_) => {
            memory.failures = 0;
            if end.outcome != "not_synced" {
                shared.note_applied(name, began);
            }
        }
    }
    memory.last = Some(LastPass {
        outcome: end.outcome,
        ended: shared.now(),
        intent,
        failures: done.failures.iter().map(failure_words).collect(),
        obstacles: done.obstacles.iter().map(|one| format!("{}: {}", one.key, one.reason)).collect(),
    });
    if shared.rows().get(name).is_some() {
        shared.put_memory(name, memory);
    }
    end
}

/// A failure for people: the object, and what the server said.
fn failure_words(failure: &Failure) -> String {
    let Failure { key, category: _, message } = failure;
    key.as_ref().map_or_else(|| message.clone(), |key| format!("{key}: {message}"))
}

impl Pass<'_> {
    async fn turns(&mut self) -> PassEnd {
        for _ in 0..MOST_DECISIONS {
            let Some(held) = self.shared.rows().get(self.name) else { return PassEnd::REST };
            let intent = self.shared.decide(&held.row);
            self.intent = intent_word(&intent);
            match self.turn(held, &intent).await {
                Turn::Decide => {}
                Turn::End(end) if self.changed && end == PassEnd::REST => {
                    return PassEnd { outcome: "changed", ended: Ended::Rest };
                }
                Turn::End(end) => return end,
            }
        }
        tracing::info!("the row changed too often during one pass; trying again later");
        PassEnd::failed(Category::Conflict)
    }

    async fn turn(&mut self, held: Held, intent: &Intent) -> Turn {
        match intent {
            Intent::Ignore => {
                if matches!(held.row.desired_state, DesiredState::Unknown(_))
                    && held.row.concerns(&self.shared.config.region)
                {
                    let problems = joined(&held.row.problems);
                    self.say_once(&format!("unknown state {problems}"), || {
                        tracing::warn!(action = "skip", problems = %problems, "nothing is done for this row");
                    });
                }
                Turn::End(PassEnd::REST)
            }
            Intent::Unusable { reason } => {
                let problems = joined(&held.row.problems);
                self.say_once(&format!("unusable {reason} {problems}"), || {
                    tracing::error!(
                        action = "skip",
                        reason,
                        problems = %problems,
                        "the row cannot be acted under; nothing of it is touched"
                    );
                });
                Turn::End(PassEnd::REST)
            }
            Intent::BackFill => self.back_fill(&held).await,
            Intent::AwaitPurge => self.purge(&held).await,
            Intent::Reject { reason, problems, .. } => {
                let text = joined(problems);
                self.say_once(&format!("reject {reason} {text}"), || {
                    tracing::warn!(action = "reject", reason = snake(reason), problems = %text, "the row cannot be served");
                });
                self.reject(held, intent).await
            }
            Intent::Serve { .. } | Intent::Stop { .. } | Intent::Remove { .. } => self.reconcile(held, intent).await,
        }
    }

    /// Logs something once for as long as the endpoint is remembered.
    fn say_once(&mut self, what: &str, say: impl FnOnce()) {
        /// Distinct words per endpoint; beyond it they are said again rather than kept.
        const MOST: usize = 32;
        if self.memory.said.contains(what) {
            return;
        }
        if self.memory.said.len() >= MOST {
            self.memory.said.clear();
        }
        self.memory.said.insert(what.to_owned());
        say();
    }

    fn fenced(&self) -> Turn {
        Turn::End(PassEnd::failed(Category::Fenced))
    }
}

/// `InvalidSpec` as the contract's action records write it: `invalid_spec`.
fn snake(reason: &str) -> String {
    reason.chars().enumerate().fold(String::new(), |mut text, (index, character)| {
        if character.is_ascii_uppercase() && index > 0 {
            text.push('_');
        }
        text.push(character.to_ascii_lowercase());
        text
    })
}

/// Whether only observing and reporting is allowed.
fn is_paused(intent: &Intent) -> bool {
    matches!(
        intent,
        Intent::Serve { paused: true, .. } | Intent::Stop { paused: true, .. } | Intent::Remove { paused: true, .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_become_the_contracts_words() {
        assert_eq!(snake("InvalidSpec"), "invalid_spec");
        assert_eq!(snake("NameCollision"), "name_collision");
    }
}
