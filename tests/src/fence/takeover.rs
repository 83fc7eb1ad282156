//! One take-over: the old leader's writers at work, a new leader that takes the Lease and stamps everything, and the count
//! of what the old one got through.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use gco_bed::wait;
use gco_monitor::leadership::decide::next_term;
use http::Method;
use serde_json::json;

use super::NAMESPACE;
use super::calls::{Caller, Reply, lease_path};
use super::kinds::{Deed, Target};
use super::old_leader::{Deeded, Signals, WRITERS, write};

/// How long a part of a take-over may take on two busy cores.
const BOUND: Duration = Duration::from_secs(120);

/// How the Lease changes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The record changes.
    Taken,
    /// It is deleted, and created anew by the next leader.
    CreatedAnew,
    /// It is deleted, somebody creates it at 0, and the next leader takes that.
    ResetThenTaken,
}

/// Whoever takes part.
#[derive(Clone, Debug)]
pub struct Actors {
    /// The monitor's account at each API server.
    pub monitor: Vec<Caller>,
    /// An administrator.
    pub admin: Caller,
    /// Every write of the Role.
    pub deeds: Vec<(Deed, Target)>,
}

/// What one take-over, or several, came to.
#[derive(Clone, Debug, Default)]
pub struct Count {
    /// Take-overs.
    pub take_overs: usize,
    /// Writes of the old leader before the new one had the Lease, accepted.
    pub accepted_before: usize,
    /// Writes of the old leader sent after the Lease was acknowledged, to objects not yet stamped, accepted.
    pub accepted_between: usize,
    /// Writes of the old leader, sent after the Lease was acknowledged, that a policy refused, by policy.
    pub refused: BTreeMap<&'static str, usize>,
    /// Objects that the old leader created after the Lease was acknowledged.
    pub stale_creates: usize,
    /// Objects that the old leader deleted before they were stamped.
    pub deleted_before_stamp: usize,
    /// Writes to objects that the new leader had stamped, in words.
    pub violations: Vec<String>,
    /// Objects that the new leader stamped.
    pub stamped: usize,
}

impl Count {
    /// Adds another count.
    pub fn add(&mut self, other: Self) {
        let Self {
            take_overs,
            accepted_before,
            accepted_between,
            refused,
            stale_creates,
            deleted_before_stamp,
            violations,
            stamped,
        } = other;
        self.take_overs += take_overs;
        self.accepted_before += accepted_before;
        self.accepted_between += accepted_between;
        for (policy, count) in refused {
            *self.refused.entry(policy).or_default() += count;
        }
        self.stale_creates += stale_creates;
        self.deleted_before_stamp += deleted_before_stamp;
        self.violations.extend(violations);
        self.stamped += stamped;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{} take-overs, {} objects stamped; the old leader's writes: {} accepted before the Lease changed hands, {} \
             between that and the stamp, {} creates after it, refused by policy {:?}; {} objects it had deleted before they \
             were stamped; to stamped objects: {}",
            self.take_overs,
            self.stamped,
            self.accepted_before,
            self.accepted_between,
            self.stale_creates,
            self.refused,
            self.deleted_before_stamp,
            self.violations.len()
        )
    }
}

/// The term in the Lease now; 0 without one.
///
/// # Errors
/// When the server does not answer.
pub async fn lease_term(caller: &Caller) -> anyhow::Result<u64> {
    let reply = caller.send(Method::GET, &lease_path(), None).await?;
    Ok(reply.body["spec"]["leaseTransitions"].as_u64().unwrap_or(0))
}

/// Makes one take-over. `round` names its objects.
///
/// # Errors
/// When a part of it does not come about, or the end is not the new leader's.
pub async fn take_over(actors: &Actors, round: &str, way: Way) -> anyhow::Result<Count> {
    let old_term = ensure_lease(actors).await?;
    let kept: Vec<(Deed, Target)> = actors.deeds.iter().filter(|(deed, _)| *deed != Deed::Create).cloned().collect();
    let name_of = |deed: Deed| format!("{round}-{}", deed.letter());
    // An administrator makes what the Role only changes; the fence is about the monitor's account.
    let made = futures::stream::iter(&kept).map(|(deed, target)| async move {
        let body = target.object(&format!("{round}-{}", deed.letter()), old_term, "made");
        let reply = actors.admin.create(target, &body, "").await?;
        ensure!(reply.is_success(), "making {} {deed:?}: {}", target.resource, reply.body);
        anyhow::Ok(())
    });
    made.buffer_unordered(8).collect::<Vec<_>>().await.into_iter().collect::<anyhow::Result<Vec<()>>>()?;

    let signals = Arc::new(Signals::default());
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let (servers, deeds) = (actors.monitor.clone(), actors.deeds.clone());
            tokio::spawn(write(number, servers, deeds, round.to_owned(), old_term, signals.clone()))
        })
        .collect();
    // All are at work before the Lease changes hands.
    rounds_of_each(&signals, 1, "each writer to have written everything once").await?;

    let new_term = change_hands(actors, old_term, way).await?;
    signals.lease_taken.store(true, Ordering::Release);
    let mark = format!("new-{new_term}");
    let mut stamped: BTreeMap<(&'static str, String), (String, u64)> = BTreeMap::new();
    let mut remade = 0;
    let owning = futures::stream::iter(&kept).map(|(deed, target)| {
        let (name, mark) = (name_of(*deed), &mark);
        async move { anyhow::Ok((target.resource, name.clone(), own(actors, target, &name, new_term, mark).await?)) }
    });
    for owned in owning.buffer_unordered(4).collect::<Vec<_>>().await {
        let (resource, name, (reply, was_absent)) = owned?;
        remade += usize::from(was_absent);
        stamped.insert((resource, name), (reply.uid(), reply.version()));
    }
    // From here on every write of the old leader to one of these would be the failure that the fence is there against.
    let so_far = least_rounds(&signals);
    rounds_of_each(&signals, so_far + 2, "each writer to have tried everything once more").await?;
    prune(actors, round).await?;
    signals.stop.store(true, Ordering::Release);
    let mut deeds = Vec::new();
    for writer in writers {
        deeds.extend(writer.await??);
    }
    // What was still created before the last one stopped.
    prune(actors, round).await?;
    end_is_the_new_leaders(actors, &stamped, new_term, &mark).await?;
    let mut count = judged(&deeds, &stamped);
    count.take_overs = 1;
    count.deleted_before_stamp = remade;
    count.stamped = stamped.len();
    clean_up(actors, round).await?;
    Ok(count)
}

fn judged(deeds: &[Deeded], stamped: &BTreeMap<(&'static str, String), (String, u64)>) -> Count {
    let mut count = Count::default();
    for deed in deeds {
        if let Some(policy) = deed.refused_by.filter(|_| deed.after_lease) {
            *count.refused.entry(policy).or_default() += 1;
        }
        if !deed.accepted {
            continue;
        }
        let stamp = stamped.get(&(deed.resource, deed.name.clone())).filter(|(uid, _)| *uid == deed.uid);
        let violates = match (deed.deed, stamp) {
            // The object that the new leader owns was deleted: whatever its version was, it is gone.
            (Deed::Delete, Some(_)) => true,
            (_, Some((_, version))) => deed.version > *version,
            (_, None) => false,
        };
        if violates {
            count.violations.push(format!("{:?} of {} {}", deed.deed, deed.resource, deed.name));
        } else if !deed.after_lease {
            count.accepted_before += 1;
        } else if deed.deed == Deed::Create {
            count.stale_creates += 1;
        } else {
            count.accepted_between += 1;
        }
    }
    count
}

fn least_rounds(signals: &Signals) -> u64 {
    signals.rounds.iter().map(|rounds| rounds.load(Ordering::Acquire)).min().unwrap_or(0)
}

async fn rounds_of_each(signals: &Signals, rounds: u64, what: &str) -> anyhow::Result<()> {
    wait::until(what, BOUND, || {
        let least = least_rounds(signals);
        std::future::ready(if least >= rounds { Ok(()) } else { Err(format!("{least} rounds of {rounds}")) })
    })
    .await?;
    Ok(())
}

/// The Lease is there, held; gives its term.
async fn ensure_lease(actors: &Actors) -> anyhow::Result<u64> {
    let reply = actors.admin.send(Method::GET, &lease_path(), None).await?;
    if reply.is_success() {
        return Ok(reply.body["spec"]["leaseTransitions"].as_u64().unwrap_or(0));
    }
    put_lease(actors, None, 1).await?;
    Ok(1)
}

/// Writes the Lease as a monitor does: POST when it is absent, else PUT of the version that was seen.
async fn put_lease(actors: &Actors, seen: Option<&Reply>, term: u64) -> anyhow::Result<Reply> {
    let spec =
        json!({"holderIdentity": format!("leader-{term}"), "leaseDurationSeconds": 15, "leaseTransitions": term});
    let server = actors.monitor.first().context("no server")?;
    let path = lease_path();
    match seen {
        Some(seen) => {
            let mut body = seen.body.clone();
            body["spec"] = spec;
            server.send(Method::PUT, &path, Some(("application/json", &body))).await
        }
        None => {
            let body = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "inference-monitor-leader", "namespace": NAMESPACE}, "spec": spec,
            });
            let collection = path.rsplit_once('/').map_or(path.as_str(), |(collection, _)| collection);
            server.send(Method::POST, collection, Some(("application/json", &body))).await
        }
    }
}

/// The Lease changes hands; returns, acknowledged, with the new term.
async fn change_hands(actors: &Actors, old_term: u64, way: Way) -> anyhow::Result<u64> {
    let path = lease_path();
    if way != Way::Taken {
        let reply = actors.admin.send(Method::DELETE, &path, None).await?;
        ensure!(reply.is_success(), "deleting the Lease: {}", reply.body);
    }
    if way == Way::ResetThenTaken {
        let reply = put_lease(actors, None, 0).await?;
        ensure!(reply.is_success(), "creating the Lease: {}", reply.body);
    }
    wait::until("the Lease to change hands", BOUND, || async {
        let seen = actors.admin.send(Method::GET, &path, None).await.map_err(|error| format!("{error:#}"))?;
        let transitions = seen.body["spec"]["leaseTransitions"].as_u64().unwrap_or(0);
        // What our elector does: above the Lease's count, and above every term on objects.
        let term = next_term(transitions, old_term);
        let reply = put_lease(actors, Some(&seen).filter(|seen| seen.is_success()), term).await;
        match reply.map_err(|error| format!("{error:#}"))? {
            reply if reply.is_success() => Ok(term),
            reply => Err(reply.body.to_string()),
        }
    })
    .await
    .map_err(anyhow::Error::from)
}

/// Stamps the object with the new term, or makes it when the old leader was quicker to delete it.
async fn own(actors: &Actors, target: &Target, name: &str, term: u64, mark: &str) -> anyhow::Result<(Reply, bool)> {
    let server = actors.monitor.first().context("no server")?;
    let absent = std::sync::atomic::AtomicBool::new(false);
    let reply = wait::until(&format!("the new leader to stamp {} {name}", target.resource), BOUND, || async {
        let words = |error: anyhow::Error| format!("{error:#}");
        let seen = server.get(target, name).await.map_err(words)?;
        if seen.is_terminating() {
            absent.store(true, Ordering::Release);
            return Err("it is being deleted".to_owned());
        }
        let reply = if seen.status == 404 {
            absent.store(true, Ordering::Release);
            actors.admin.create(target, &target.object(name, term, mark), "").await
        } else {
            server.stamp(target, name, &seen, term, mark).await
        };
        match reply.map_err(words)? {
            reply if reply.is_success() && !reply.is_terminating() => Ok(reply),
            reply => Err(format!("{}: {}", reply.status, reply.message())),
        }
    })
    .await?;
    Ok((reply, absent.load(Ordering::Acquire)))
}

/// The new leader removes what the old one created and nobody asks for: stamp, then delete.
async fn prune(actors: &Actors, round: &str) -> anyhow::Result<()> {
    let server = actors.monitor.first().context("no server")?;
    let name = format!("{round}-{}", Deed::Create.letter());
    for (_, target) in actors.deeds.iter().filter(|(deed, _)| *deed == Deed::Create) {
        let term = lease_term(&actors.admin).await?;
        wait::until(&format!("{} {name} to be pruned", target.resource), BOUND, || async {
            let words = |error: anyhow::Error| format!("{error:#}");
            let seen = server.get(target, &name).await.map_err(words)?;
            if seen.status == 404 || seen.is_terminating() {
                return Ok(());
            }
            let stamped = server.stamp(target, &name, &seen, term, "pruned").await.map_err(words)?;
            let deleted = server.delete(target, &name, &stamped, "Background").await.map_err(words)?;
            if deleted.is_success() { Ok(()) } else { Err(format!("{}: {}", deleted.status, deleted.message())) }
        })
        .await?;
    }
    Ok(())
}

async fn end_is_the_new_leaders(
    actors: &Actors,
    stamped: &BTreeMap<(&'static str, String), (String, u64)>,
    term: u64,
    mark: &str,
) -> anyhow::Result<()> {
    for ((resource, name), (uid, _)) in stamped {
        let target = Target::named(resource)?;
        let reply = actors.admin.get(&target, name).await?;
        let annotations = &reply.body["metadata"]["annotations"];
        let (stored, by) = (&annotations["gco.io/leader-term"], &annotations["suite/mark"]);
        ensure!(
            reply.uid() == *uid && *stored == json!(term.to_string()) && *by == json!(mark),
            "{resource} {name} did not end as the new leader's (term {term}): {}",
            reply.body
        );
    }
    Ok(())
}

/// An administrator removes what this take-over made, so that the next ones find a small namespace.
async fn clean_up(actors: &Actors, round: &str) -> anyhow::Result<()> {
    for (deed, target) in &actors.deeds {
        let name = format!("{round}-{}", deed.letter());
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        actors.admin.send(Method::DELETE, &target.path(&name), Some(("application/json", &options))).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deed(deed: Deed, uid: &str, version: u64, accepted: bool) -> Deeded {
        Deeded {
            deed,
            resource: "services",
            name: "a".into(),
            uid: uid.into(),
            version,
            accepted,
            refused_by: None,
            after_lease: true,
        }
    }

    #[test]
    fn only_what_reaches_a_stamped_object_violates() {
        let stamped = BTreeMap::from([(("services", "a".to_owned()), ("u".to_owned(), 10))]);
        let judge = |one: Deeded| judged(&[one], &stamped).violations.len();
        assert_eq!(judge(deed(Deed::Update, "u", 11, true)), 1);
        assert_eq!(judge(deed(Deed::Update, "u", 9, true)), 0);
        assert_eq!(judge(deed(Deed::Update, "u", 11, false)), 0);
        // Of an object that was replaced since.
        assert_eq!(judge(deed(Deed::Update, "earlier", 11, true)), 0);
        assert_eq!(judge(deed(Deed::Delete, "u", 9, true)), 1);
        assert_eq!(judge(deed(Deed::Delete, "earlier", 9, true)), 0);
    }
}
