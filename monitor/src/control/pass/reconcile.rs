//! The part of a pass that looks at the cluster, plans, acts and reports.

use std::collections::BTreeMap;
use std::time::Duration;

use gco_runtime::clock::BootTime;
use gco_store::row::EndpointRow;
use gco_store::status::RegionEntry;
use gco_store::table::TableError;

use super::super::action::action_of;
use super::super::proposal::{Circumstances, Proposal};
use super::super::queue::Ended;
use super::super::restarts::Permission;
use super::super::rows::Held;
use super::super::shared::{Futile, generation_of};
use super::{Pass, PassEnd, Turn, is_paused};
use crate::cluster::{Applied, ExecuteInput, Replaced};
use crate::intent::{CleanUp, Intent};
use crate::object::{DesiredSet, Kind, ObjectKey, Observed};
use crate::plan::{Plan, Step, obstacle};
use crate::report::{Category, Done, ReportInput, may_wait, report};

/// Plans per decision: some for a plan that comes in stages, some for conflicts.
const MOST_PLANS: usize = 10;
/// Conflicts and refusals for speed that are retried inside a pass (D-9, D-57).
const MOST_RETRIES: u32 = 4;
/// Longest wait inside a pass; a longer one gives the place to others.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// First wait inside a pass.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// How long a caller waits for caches that are not complete.
const NOT_SYNCED_WAIT: Duration = Duration::from_millis(200);
/// How long a refusal by the admission policies is retried while our Lease still reads as ours: their view of the Lease
/// lags behind by milliseconds to seconds.
const STALE_TERM_PATIENCE: Duration = Duration::from_secs(5);
/// How long a restart that no edit asked for waits before it asks again for its turn.
const RESTART_WAIT: Duration = Duration::from_secs(2);
/// Wait between these retries.
const STALE_TERM_WAIT: Duration = Duration::from_millis(300);

/// Progress of a rollout is written at most this often per endpoint: one of two replicas changes the counts about four
/// times within its first second, and each write is copied to every region of the table.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// What a strong read of the row said about acting on it.
enum Authority {
    /// It asks for the same.
    Same(Held),
    /// It asks for something else, or is gone.
    Other,
    /// The table did not answer.
    Unknown(TableError),
}

/// What a decision's plans came to.
pub(super) struct Settled {
    /// Last observation.
    pub(super) observed: Observed,
    /// Failures and waits that the queue must know.
    pub(super) end: PassEnd,
    /// The table could not be read.
    pub(super) away: bool,
}

impl Pass<'_> {
    fn not_synced() -> Turn {
        Turn::End(PassEnd { outcome: "not_synced", ended: Ended::Again(NOT_SYNCED_WAIT) })
    }

    /// Reports a row that cannot be served; nothing of it is touched.
    pub(super) async fn reject(&mut self, held: Held, intent: &Intent) -> Turn {
        let Some(observed) = self.shared.cluster.caches.observe(self.name) else { return Self::not_synced() };
        let settled = Settled { observed, end: PassEnd::REST, away: self.shared.is_table_away() };
        self.report(held, intent, None, settled).await
    }

    /// Serve, stop or remove.
    pub(super) async fn reconcile(&mut self, mut held: Held, intent: &Intent) -> Turn {
        let desired = self.proposal(&held.row, intent).desired();
        self.done = Done::default();
        let settled = match self.settle(&mut held, intent, desired.as_ref()).await {
            Ok(settled) => settled,
            Err(turn) => return turn,
        };
        let input_hash = desired.as_ref().and_then(|desired| {
            let own = desired.objects.iter().find(|one| one.key.kind == Kind::Deployment && one.key.name == self.name);
            own.and_then(|own| own.input_hash.clone())
        });
        self.report(held, intent, input_hash.as_deref(), settled).await
    }

    fn proposal<'a>(&'a self, row: &'a EndpointRow, intent: &'a Intent) -> Proposal<'a> {
        let config = &self.shared.config;
        Proposal {
            row,
            intent,
            region: &config.region,
            namespace: &config.namespace,
            cluster_name: &config.cluster_name,
        }
    }

    /// The plan; a restart that no edit asks for is in it only if it may begin now.
    fn plan(
        &self,
        row: &EndpointRow,
        intent: &Intent,
        desired: Option<&DesiredSet>,
        observed: &Observed,
        away: bool,
    ) -> Plan {
        // A paused endpoint's plan is not carried out, so nothing in it waits.
        let mut plan = self.plan_with(row, intent, desired, observed, away, is_paused(intent));
        if !plan.obstacles.iter().any(|one| one.reason == obstacle::RESTART_WAITS) {
            return plan;
        }
        let at_once = match intent {
            Intent::Serve { refresh, .. } => refresh.as_ref().and_then(|refresh| refresh.at_once),
            _ => None,
        };
        match self.shared.may_restart(self.name, at_once) {
            Permission::Given => self.plan_with(row, intent, desired, observed, away, true),
            Permission::Wait => plan,
            Permission::Stopped => {
                for obstacle in plan.obstacles.iter_mut().filter(|one| one.reason == obstacle::RESTART_WAITS) {
                    obstacle.reason = obstacle::RESTARTS_STOPPED;
                }
                plan
            }
        }
    }

    fn plan_with(
        &self,
        row: &EndpointRow,
        intent: &Intent,
        desired: Option<&DesiredSet>,
        observed: &Observed,
        away: bool,
        may_restart: bool,
    ) -> Plan {
        self.shared.telemetry.plans_computed.inc();
        let lifecycles = self.shared.rows().lifecycles();
        let futile: BTreeMap<ObjectKey, String> =
            self.memory.futile.iter().map(|(key, futile)| (key.clone(), futile.digest.clone())).collect();
        let now = gco_store::time::format(self.shared.clock.wall());
        let circumstances = Circumstances {
            observed,
            known_lifecycles: &lifecycles,
            leader: self.claim.mark(),
            futile: &futile,
            table_away: away,
            may_restart,
            now: &now,
        };
        self.proposal(row, intent).plan(desired, &circumstances)
    }

    /// Plans and acts until there is nothing more to do, or no more to be done now.
    async fn settle(
        &mut self,
        held: &mut Held,
        intent: &Intent,
        desired: Option<&DesiredSet>,
    ) -> Result<Settled, Turn> {
        let shared = self.shared;
        let mut away = shared.is_table_away();
        let mut authority_read: Option<BootTime> = None;
        let mut retries = 0;
        let mut replaced: BTreeMap<ObjectKey, Replaced> = BTreeMap::new();
        let mut end = PassEnd::REST;
        if let Intent::Remove { clean_up, .. } = intent {
            self.done.absence_observations = clean_up.counted_absences(&held.row, &shared.config.region);
        }
        for _ in 0..MOST_PLANS {
            let Some(observed) = shared.cluster.caches.observe(self.name) else { return Err(Self::not_synced()) };
            self.forget_futile(&observed);
            // A failure that this plan is the answer to is over once the plan is empty.
            self.done.failures.clear();
            let plan = self.plan(&held.row, intent, desired, &observed, away);
            if self.note_futile(&plan, &observed, &replaced) {
                continue;
            }
            self.done.obstacles.clone_from(&plan.obstacles);
            if plan.obstacles.iter().any(|one| one.reason == obstacle::KIND_MISSING) {
                shared.cluster.caches.need_missing_kinds();
            }
            let mutates = plan.steps.iter().any(|step| *step != Step::ProveAbsence);
            let proves = plan.steps.contains(&Step::ProveAbsence);
            if is_paused(intent) || (!mutates && !proves) {
                return Ok(Settled { observed, end, away });
            }
            if !mutates && let Some(wait) = self.wait_for_sweep(intent) {
                return Ok(Settled { observed, end: PassEnd::waiting(wait), away });
            }
            // Something will be changed. Row authority comes first (architecture 5).
            if away {
                if !self.may_act_alone(intent) {
                    self.say_once("table away", || {
                        tracing::warn!(action = "skip", "the table cannot be read; nothing is changed");
                    });
                    return Ok(Settled { observed, end: PassEnd::failed(Category::Unavailable), away });
                }
            } else if authority_read.is_none_or(|read| shared.now() >= read + shared.config.lease.renew_interval) {
                let began = shared.now();
                match self.authority(intent).await {
                    Authority::Same(fresh) => {
                        *held = fresh;
                        authority_read = Some(began);
                        self.memory.under_authority = Some((self.claim.mark().epoch.clone(), intent.clone()));
                    }
                    Authority::Other => {
                        shared.telemetry.refused("row_authority");
                        return Err(Turn::Decide);
                    }
                    Authority::Unknown(error) => {
                        end = self.table_failed("get", &error);
                        away = true;
                        continue;
                    }
                }
            }
            if !mutates {
                let end = self.sweep(&held.row, intent).await?;
                return Ok(Settled { observed, end, away });
            }
            self.log_action(intent, &plan, &observed);
            let input = ExecuteInput {
                plan: &plan,
                claim: self.claim,
                authority_until: authority_read.filter(|_| !away).map(|read| read + shared.config.lease.renew_interval),
                now: &|| shared.clock.boot(),
            };
            let applied = shared.cluster.execute(&input).await;
            self.note(&applied);
            replaced.extend(applied.replaced().clone());
            if applied.is_fenced() {
                return Err(self.refused_by_fence(&applied));
            }
            self.memory.stale_since = None;
            if applied.is_authority_over() {
                authority_read = None;
                continue;
            }
            let worst = worst_of(&applied);
            if applied.plan_again() && retries < MOST_RETRIES {
                let wait = FIRST_WAIT.saturating_mul(1 << retries).mul_f64(0.5 + shared.jitter());
                let wait = wait.max(applied.retry_after().unwrap_or_default());
                retries += 1;
                // A server that does not answer is not asked again by this pass: each try may take its whole time-out.
                if wait <= LONGEST_WAIT && worst != Some(Category::Unavailable) {
                    tokio::time::sleep(wait).await;
                    continue;
                }
            }
            if let Some(category) = worst {
                let least = applied.retry_after().unwrap_or_default();
                let observed = shared.cluster.caches.observe(self.name).unwrap_or(observed);
                return Ok(Settled { observed, end: PassEnd::failed_for(category, least), away });
            }
        }
        tracing::warn!("the plan does not become empty; trying again later");
        let Some(observed) = shared.cluster.caches.observe(self.name) else { return Err(Self::not_synced()) };
        Ok(Settled { observed, end: PassEnd::failed(Category::Conflict), away })
    }

    /// A strong read of the row, once before the first change of a pass.
    async fn authority(&self, intent: &Intent) -> Authority {
        match self.shared.read_row(self.name).await {
            Ok(Some(held)) if self.shared.decide(&held.row) == *intent => Authority::Same(held),
            Ok(_) => Authority::Other,
            Err(error) => Authority::Unknown(error),
        }
    }

    /// While the table is away, only what this leader reconciled under row authority in its current epoch goes on, and
    /// nothing is removed.
    fn may_act_alone(&self, intent: &Intent) -> bool {
        let known = self.memory.under_authority.as_ref();
        !matches!(intent, Intent::Remove { .. })
            && known.is_some_and(|(epoch, known)| *epoch == self.claim.mark().epoch && known == intent)
    }

    fn note(&mut self, applied: &Applied) {
        let Done { steps, failures, obstacles, absence: _, absence_observations: _ } = applied.done();
        self.changed |= !steps.is_empty();
        self.done.steps.extend(steps.iter().cloned());
        // Of failures only those of the last plan count: the earlier ones were retried.
        self.done.failures.clone_from(failures);
        self.done.obstacles.clone_from(obstacles);
    }

    fn refused_by_fence(&mut self, applied: &Applied) -> Turn {
        if !applied.is_stale_term() {
            tracing::warn!(action = "fence", "the claim ended during the pass");
            return self.fenced();
        }
        let since = *self.memory.stale_since.get_or_insert(self.shared.now());
        if self.shared.now().saturating_duration_since(since) < STALE_TERM_PATIENCE {
            return Turn::End(PassEnd::waiting(STALE_TERM_WAIT));
        }
        tracing::error!(action = "fence", "the admission policies take this leader for a deposed one");
        self.fenced()
    }

    /// Replacements that were accepted and that the plan, made from exactly the answer, wants again: they have no effect.
    /// Returns whether a new one was found.
    fn note_futile(&mut self, plan: &Plan, observed: &Observed, replaced: &BTreeMap<ObjectKey, Replaced>) -> bool {
        let mut found = false;
        for step in &plan.steps {
            let Step::Replace { key, of, body, .. } = step else { continue };
            let digest = crate::plan::digest(body);
            let again = replaced
                .get(key)
                .is_some_and(|before| before.resource_version == of.resource_version && before.digest == digest);
            if again {
                let generation = observed.objects.get(key).and_then(generation_of);
                tracing::warn!(object = %key, "the server keeps what it has; this write is not repeated");
                self.memory.futile.insert(key.clone(), Futile { digest, generation });
                found = true;
            }
        }
        found
    }

    /// Somebody else changed the object since: the write may have an effect now.
    fn forget_futile(&mut self, observed: &Observed) {
        self.memory.futile.retain(|key, futile| {
            observed.objects.get(key).is_some_and(|object| generation_of(object) == futile.generation)
        });
    }

    fn log_action(&self, intent: &Intent, plan: &Plan, observed: &Observed) {
        let Some(action) = action_of(intent, plan, observed) else { return };
        tracing::info!(
            action = action.action,
            image = action.image,
            replicas = action.replicas,
            steps = plan.steps.len(),
            "acting on the endpoint"
        );
    }

    /// Reports what is true now, then promotes, and tells the queue when to look again.
    async fn report(&mut self, held: Held, intent: &Intent, spec_hash: Option<&str>, settled: Settled) -> Turn {
        let Settled { observed, mut end, away } = settled;
        let shared = self.shared;
        let now = gco_store::time::format(shared.clock.wall());
        let entry = report(&ReportInput {
            row: &held.row,
            region: &shared.config.region,
            intent,
            observed: &observed,
            done: &self.done,
            spec_hash,
            now: &now,
        });
        let mut held = held;
        if let Some(entry) = entry {
            if let Some(wait) = self.put_off(&held.row, &entry) {
                end = later(end, PassEnd::waiting(wait));
            } else if away {
                end = later(end, PassEnd::failed(Category::Unavailable));
            } else {
                match self.write_status(&held.row, intent, &entry).await {
                    Ok(Some(fresh)) => held = fresh,
                    Ok(None) => return Turn::End(PassEnd::REST),
                    Err(turn) => return turn,
                }
            }
        }
        if !away {
            if matches!(intent, Intent::Serve { paused: false, .. }) {
                match self.promote(held).await {
                    Ok(promoted) => held = promoted,
                    Err(turn) => return turn,
                }
            }
            // The answer to our own write may carry somebody's edit that came just before it. No read will show that edit
            // as a change any more, so it is looked for here: without this it would wait for the next full pass.
            if shared.decide(&held.row) != *intent {
                return Turn::Decide;
            }
            // A row that was read since we lead and that asks for what we hold is authority as good as a read before a
            // change: it is what may go on without the table.
            if held.known_since >= self.claim.acquired_at() {
                self.memory.under_authority = Some((self.claim.mark().epoch.clone(), intent.clone()));
            }
        }
        if self.done.obstacles.iter().any(|one| one.reason == obstacle::RESTART_WAITS) {
            end = later(end, PassEnd::waiting(RESTART_WAIT));
        }
        if let Some(until) = shared.cluster.caches.foreign_until(self.name) {
            end = later(end, PassEnd::waiting(until.saturating_duration_since(shared.now())));
        }
        if let Some(wait) = self.watch_readiness(intent, &observed) {
            end = later(end, PassEnd::waiting(wait));
        }
        Turn::End(end)
    }

    /// How long an entry that only tells progress waits for the one after it; `None`: it is written now.
    fn put_off(&self, row: &EndpointRow, entry: &RegionEntry) -> Option<Duration> {
        let written = self.memory.status_written?;
        let stored = row.region_status.get(&self.shared.config.region)?;
        let left = PROGRESS_INTERVAL.saturating_sub(self.shared.now().saturating_duration_since(written));
        (!left.is_zero() && may_wait(stored, entry)).then_some(left)
    }

    /// Warns once when an endpoint has had no ready pod for too long; returns when to look again.
    fn watch_readiness(&mut self, intent: &Intent, observed: &Observed) -> Option<Duration> {
        let wanted = matches!(intent, Intent::Serve { spec, paused: false, .. } if spec.spec.replicas > 0);
        // A canary's pods take a share of the requests, they do not stand in for the endpoint's own.
        if !wanted || observed.pods.iter().any(|pod| pod.ready && pod.app == self.name) {
            if self.memory.unready.take().is_some_and(|(_, warned)| warned) {
                tracing::info!(action = "recover", "the endpoint has a ready pod again");
            }
            return None;
        }
        let now = self.shared.now();
        let threshold = self.shared.config.unhealthy_threshold;
        let (since, warned) = self.memory.unready.get_or_insert((now, false));
        let unready_for = now.saturating_duration_since(*since);
        if unready_for < threshold {
            return Some(threshold.saturating_sub(unready_for));
        }
        if !*warned {
            *warned = true;
            tracing::warn!(
                action = "watch",
                unready_seconds = unready_for.as_secs(),
                "the endpoint has had no ready pod for too long"
            );
        }
        None
    }
}

/// The more pressing of two ends: a failure before a wait, the shorter of two waits, anything before rest.
fn later(one: PassEnd, other: PassEnd) -> PassEnd {
    match (one.ended, other.ended) {
        (Ended::Failed { .. }, _) => one,
        (_, Ended::Failed { .. }) => other,
        (Ended::Again(first), Ended::Again(second)) => {
            if first <= second {
                one
            } else {
                other
            }
        }
        (Ended::Again(_), Ended::Rest) => one,
        (Ended::Rest, _) => other,
    }
}

/// The category that decides when to try again: what passes by itself before what needs somebody.
fn worst_of(applied: &Applied) -> Option<Category> {
    const ORDER: [Category; 6] = [
        Category::Unavailable,
        Category::Throttled,
        Category::Conflict,
        Category::Forbidden,
        Category::Invalid,
        Category::Bug,
    ];
    let failures = &applied.done().failures;
    ORDER.into_iter().find(|category| failures.iter().any(|failure| failure.category == *category))
}

/// Whose absence an intent wants proven.
pub(super) fn clean_up_of(intent: &Intent) -> Option<&CleanUp> {
    match intent {
        Intent::Remove { clean_up, .. } => Some(clean_up),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_pressing_end_wins() {
        let soon = PassEnd::waiting(Duration::from_secs(1));
        let late = PassEnd::waiting(Duration::from_secs(9));
        let failed = PassEnd::failed(Category::Invalid);
        assert_eq!(later(late, soon), soon);
        assert_eq!(later(soon, failed), failed);
        assert_eq!(later(failed, soon), failed);
        assert_eq!(later(PassEnd::REST, late), late);
        assert_eq!(later(late, PassEnd::REST), late);
    }
}
