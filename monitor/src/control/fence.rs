//! After each take-over: do the cluster's admission policies refuse what a deposed leader would write?
//!
//! A policy that is bound and does not work is worse than none, because people rely on it; and one that judges by the Lease
//! can stop following it, silently, until its API server restarts. So each new leader pretends, in two dry runs, to be its
//! own predecessor. Where no policies are bound, that is known and quiet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use crate::cluster::Rule;
use crate::cluster::error::ApiError;
use crate::leadership::Claim;
use crate::report::Category;

/// How long a rule may accept an older term before it counts as ineffective: API servers follow the Lease with a delay of
/// milliseconds to a second, and a policy takes up to a second to come into force.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two tries within that.
const RETRY: Duration = Duration::from_millis(300);

/// Until a test that could not be made (nothing to test on, no answer) is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// How a rule was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuleState {
    /// Not tested: not leading, no object to test on yet, or no answer.
    #[default]
    Unknown,
    /// Not bound in this cluster.
    NotInstalled,
    /// It refuses an older term.
    Effective,
    /// It is bound and accepts an older term.
    Ineffective,
}

impl RuleState {
    /// All.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::NotInstalled, Self::Effective, Self::Ineffective];

    /// The word of metrics and logs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::NotInstalled => "not_installed",
            Self::Effective => "effective",
            Self::Ineffective => "ineffective",
        }
    }
}

/// How both rules were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    order: RuleState,
    lease: RuleState,
}

impl Fence {
    /// How a rule was found.
    #[must_use]
    pub fn state(&self, rule: Rule) -> RuleState {
        match rule {
            Rule::Order => self.order,
            Rule::Lease => self.lease,
        }
    }

    fn set(&mut self, rule: Rule, state: RuleState) {
        match rule {
            Rule::Order => self.order = state,
            Rule::Lease => self.lease = state,
        }
    }

    /// For people: `order effective, lease ineffective`.
    #[must_use]
    pub fn words(&self) -> String {
        Rule::ALL.map(|rule| format!("{} {}", rule.word(), self.state(rule).word())).join(", ")
    }
}

/// Tests after each take-over, until `stop`.
pub async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut leadership = shared.leadership.clone();
    let mut tested = None;
    let mut fence = Fence::default();
    let mut bound = BTreeSet::new();
    shared.set_fence(fence);
    loop {
        let claim = leadership.claim();
        let term = claim.as_ref().map(|claim| claim.mark().term);
        if term != tested {
            tested = term;
            fence = Fence::default();
            bound.clear();
            shared.set_fence(fence);
        }
        let unknown = Rule::ALL.into_iter().any(|rule| fence.state(rule) == RuleState::Unknown);
        if let Some(claim) = claim.as_ref().filter(|_| unknown) {
            tokio::select! {
                () = stop.cancelled() => return,
                // A test is worth nothing once another leads.
                () = leadership.changed() => continue,
                () = test(&shared, claim, &mut bound, &mut fence) => {}
            }
            shared.set_fence(fence);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = leadership.changed() => {}
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// Tests each rule whose state is not known yet.
async fn test(shared: &Shared, claim: &Claim, bound: &mut BTreeSet<Rule>, fence: &mut Fence) {
    for rule in Rule::ALL {
        if fence.state(rule) != RuleState::Unknown {
            continue;
        }
        match state_of(shared, claim, rule, bound).await {
            Ok(state) => {
                say(rule, state);
                fence.set(rule, state);
            }
            Err(error) if error.category == Category::Fenced => return,
            Err(error) => {
                tracing::info!(rule = rule.word(), error = %error, "a rule of the admission fence was not tested")
            }
        }
    }
}

async fn state_of(
    shared: &Shared,
    claim: &Claim,
    rule: Rule,
    bound: &mut BTreeSet<Rule>,
) -> Result<RuleState, ApiError> {
    let cluster = &shared.cluster;
    // Asked once: a region without objects, where the order rule has nothing to protect, is at rest like any other.
    if !bound.contains(&rule) {
        if !cluster.is_bound(rule).await? {
            return Ok(RuleState::NotInstalled);
        }
        bound.insert(rule);
    }
    let began = shared.now();
    loop {
        let refused = match rule {
            Rule::Lease => cluster.refuses_older_create(claim).await?,
            Rule::Order => {
                let Some((object, term)) = cluster.a_stamped_object() else { return Ok(RuleState::Unknown) };
                cluster.refuses_older_update(claim, &object, term).await?
            }
        };
        if refused {
            return Ok(RuleState::Effective);
        }
        if shared.now().saturating_duration_since(began) >= PATIENCE {
            return Ok(RuleState::Ineffective);
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn say(rule: Rule, state: RuleState) {
    let (rule, policy) = (rule.word(), rule.policy());
    match state {
        RuleState::Effective => tracing::info!(action = "test_fence", rule, "the admission fence's rule is effective"),
        RuleState::Ineffective => tracing::error!(
            action = "test_fence",
            rule,
            policy,
            "the admission fence's rule is bound and accepts a deposed leader's write"
        ),
        RuleState::NotInstalled | RuleState::Unknown => {
            tracing::debug!(
                action = "test_fence",
                rule,
                state = state.word(),
                "the admission fence's rule was not tested"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_name_both_rules() {
        let mut fence = Fence::default();
        assert_eq!(fence.words(), "order unknown, lease unknown");
        fence.set(Rule::Order, RuleState::Effective);
        fence.set(Rule::Lease, RuleState::Ineffective);
        assert_eq!(fence.words(), "order effective, lease ineffective");
        assert_eq!(fence.state(Rule::Lease).word(), "ineffective");
    }
}
