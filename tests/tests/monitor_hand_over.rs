//! The replica count changes hands: from the row to Kubernetes' own autoscaler, to KEDA's, and back, in every direction.
//!
//! Judged by every event of a watch on the Deployment: no count may ever be outside of the range between where the old owner
//! had it and where the new one wants it. The HPA controller is the real one; it has no metrics here, so that what it does
//! is to keep a count within its bounds. KEDA is a stand-in.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_bed::wait;
use gco_runtime::random::{Randomness, SystemRandomness};
use gco_store::status::{RegionEntry, State};
use gco_tests::dice::roll;
use gco_tests::original::Original;
use gco_tests::region::counts::Counts;
use gco_tests::region::keda::{Keda, PREFIX};
use gco_tests::region::rows::spec;
use gco_tests::region::{BOUND, Monitor, Region, RegionSettings, TestTable};
use gco_tests::size::Size;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

type TestResult = anyhow::Result<()>;

/// Who sets the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// The row.
    Row,
    /// Kubernetes' own autoscaler.
    Kubernetes,
    /// KEDA.
    Keda,
}

/// A round trip that goes every way once.
const TOUR: [Owner; 7] =
    [Owner::Row, Owner::Kubernetes, Owner::Keda, Owner::Row, Owner::Keda, Owner::Kubernetes, Owner::Row];

/// What the row asks for.
#[derive(Clone, Copy, Debug)]
struct Ask {
    owner: Owner,
    /// Of the row; an autoscaler takes no notice.
    replicas: i32,
    least: i32,
    most: i32,
}

impl Ask {
    /// A request with numbers from the dice, from 1 to 7.
    fn rolled(owner: Owner, dice: &dyn Randomness) -> Self {
        let number = || i32::try_from(roll(dice) % 5).unwrap_or_default() + 1;
        let least = number();
        Self { owner, replicas: number(), least, most: least + number() % 3 }
    }

    /// Where a count ends that is here now, when the autoscaler itself wants nothing.
    fn target(self, count: i32) -> i32 {
        match self.owner {
            Owner::Row => self.replicas,
            Owner::Kubernetes | Owner::Keda => count.clamp(self.least, self.most),
        }
    }

    /// Where the owner may have the count.
    fn range(self) -> (i32, i32) {
        match self.owner {
            Owner::Row => (self.replicas, self.replicas),
            Owner::Kubernetes | Owner::Keda => (self.least, self.most),
        }
    }

    fn apply(self, spec: &mut Value) {
        let Self { owner, replicas, least, most } = self;
        spec["replicas"] = json!(replicas);
        let metric = if owner == Owner::Keda { "gpu" } else { "cpu" };
        spec["autoscaling"] = json!({
            "enabled": owner != Owner::Row, "min_replicas": least, "max_replicas": most,
            "metrics": [{"type": metric, "target": 70}],
        });
    }
}

/// Waits until the row's owner has the count, the others are gone, and the count is one of `allowed`.
async fn owned(region: &Region, name: &str, ask: Ask, (low, high): (i32, i32)) -> anyhow::Result<()> {
    wait::until(&format!("{name} to be {ask:?} from {low} to {high}"), BOUND, || async {
        let look = async {
            let difference = region.disagreement(name).await?;
            let objects = region.objects_of(name).await?;
            let count = objects.deployments.get(name).and_then(|one| one["spec"]["replicas"].as_i64());
            anyhow::Ok((difference, count.unwrap_or_default()))
        };
        match look.await.map_err(|error| format!("{error:#}"))? {
            (Some(difference), _) => Err(difference),
            (None, count) if (i64::from(low)..=i64::from(high)).contains(&count) => Ok(()),
            (None, count) => Err(format!("the count is {count}")),
        }
    })
    .await?;
    Ok(())
}

/// Waits until the new owner's autoscaler, if it has one, is the only one, and the count is within its range.
async fn handed(region: &Region, name: &str, ask: Ask) -> anyhow::Result<()> {
    let (low, high) = ask.range();
    let wanted: Vec<String> = autoscaler_of(name, ask.owner).into_iter().collect();
    region
        .wait_for(&format!("{name} to be handed to {ask:?}"), BOUND, |snapshot| {
            let objects = snapshot.of(name);
            let there: Vec<String> = objects.autoscalers.keys().cloned().collect();
            let instructed = objects.scaled_objects.len() == usize::from(ask.owner == Owner::Keda);
            let count = objects.deployments.get(name).and_then(|one| one["spec"]["replicas"].as_i64()).unwrap_or(0);
            let within = (i64::from(low)..=i64::from(high)).contains(&count);
            if there == wanted && instructed && within { Ok(()) } else { Err(format!("{there:?}, {count} replicas")) }
        })
        .await?;
    Ok(())
}

/// The name of the autoscaler that acts for an owner.
fn autoscaler_of(name: &str, owner: Owner) -> Option<String> {
    match owner {
        Owner::Row => None,
        Owner::Kubernetes => Some(name.to_owned()),
        Owner::Keda => Some(format!("{PREFIX}{name}")),
    }
}

/// One endpoint goes the tour; gives the events that were looked at, and how many counts were seen.
async fn tour(region: &Region, name: &str, dice: &dyn Randomness, busy: bool) -> anyhow::Result<usize> {
    let mut ask = Ask::rolled(Owner::Row, dice);
    region.deploy(name, spec(u32::try_from(ask.replicas)?, "0")).await?;
    owned(region, name, ask, ask.range()).await?;
    let counts = region.counts(name).await?;
    let mut events = 0;
    for owner in TOUR.into_iter().skip(1) {
        let before = counts.all()?.last().copied().context("no count")?;
        let from = ask;
        let to = Ask::rolled(owner, dice);
        let writer = busy.then(|| Writer::start(region, name));
        let seen = counts.all()?.len();
        region.edit(name, |spec| to.apply(spec)).await?;
        if busy {
            // Both owners may move it meanwhile, within their bounds; pods follow later.
            handed(region, name, to).await?;
        } else {
            owned(region, name, to, (to.target(before), to.target(before))).await?;
        }
        drop(writer);
        let all = counts.all()?;
        let (low, high) = if busy {
            let ((a, b), (c, d)) = (from.range(), to.range());
            (a.min(c).min(before), b.max(d).max(before))
        } else {
            (before.min(to.target(before)), before.max(to.target(before)))
        };
        let outside: Vec<&i32> = all[seen - 1..].iter().filter(|count| !(low..=high).contains(count)).collect();
        ensure!(outside.is_empty(), "{from:?} to {to:?}, from {before}: {:?} leave {low} to {high}", &all[seen - 1..]);
        events += all.len() - seen;
        ask = to;
    }
    Ok(events)
}

/// An autoscaler that is busy: as long as one is there, it sets a count within its bounds, again and again, through the
/// sub-resource that the real ones use.
struct Writer {
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Writer {
    fn start(region: &Region, name: &str) -> Self {
        let (client, namespace, name) = (region.client().clone(), region.namespace().to_owned(), name.to_owned());
        let task = tokio::spawn(async move {
            let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
            let autoscalers: Api<HorizontalPodAutoscaler> = Api::namespaced(client, &namespace);
            let names = [Owner::Kubernetes, Owner::Keda].map(|owner| autoscaler_of(&name, owner).unwrap_or_default());
            loop {
                for autoscaler in &names {
                    // The count is read first, as the real one does: a write after a hand-over then meets another version.
                    let Ok(mut scale) = deployments.get_scale(&name).await else { continue };
                    let Ok(Some(live)) = autoscalers.get_opt(autoscaler).await else { continue };
                    let Some(bounds) = live.spec.filter(|_| live.metadata.deletion_timestamp.is_none()) else {
                        continue;
                    };
                    let width =
                        usize::try_from(bounds.max_replicas - bounds.min_replicas.unwrap_or(1)).unwrap_or(0) + 1;
                    let step = i32::try_from(roll(&SystemRandomness) % width).unwrap_or(0);
                    scale.spec.get_or_insert_default().replicas = Some(bounds.min_replicas.unwrap_or(1) + step);
                    drop(deployments.replace_scale(&name, &PostParams::default(), &scale).await);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self { task }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_count_stays_between_old_and_new_target_in_every_direction() -> TestResult {
    tours(false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_count_stays_within_the_owners_bounds_while_an_autoscaler_keeps_moving_it() -> TestResult {
    tours(true).await
}

async fn tours(busy: bool) -> TestResult {
    let region = Region::start().await?;
    let _keda = region.start_keda().await?;
    let _monitor = Monitor::leading(&region).await?;
    let at_once = 4;
    let rounds = Size::asked().choose(1, 5);
    let (mut events, mut handed) = (0, 0);
    for round in 0..rounds {
        let names: Vec<String> = (0..at_once).map(|number| format!("chat{round}-{number}")).collect();
        let tours = names.iter().map(|name| tour(&region, name, &SystemRandomness, busy));
        for seen in futures::future::join_all(tours).await {
            events += seen?;
            handed += TOUR.len() - 1;
        }
        for name in &names {
            region.stop(name).await?;
        }
    }
    println!(
        "{handed} hand-overs, {} of each direction, {events} events of Deployments: all within the range",
        handed / 6
    );
    Ok(())
}

/// A hand-over of an endpoint that the original made.
struct FromOriginal {
    name: String,
    from: Ask,
    to: Ask,
    /// The row is edited before our monitor has seen anything of the endpoint; otherwise once it has taken it over.
    early: bool,
}

impl FromOriginal {
    /// One of each kind in every direction, in turn.
    fn rolled(pairs: usize, dice: &dyn Randomness) -> Vec<Self> {
        let directions: Vec<(Owner, Owner)> = TOUR.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let each = directions.iter().enumerate().flat_map(|(number, (from, to))| {
            (0..2 * pairs).map(move |copy| (format!("chat{number}-{copy}"), *from, *to, copy % 2 == 0))
        });
        each.map(|(name, from, to, early)| Self {
            name,
            from: Ask::rolled(from, dice),
            to: Ask::rolled(to, dice),
            early,
        })
        .collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_count_stays_within_the_range_when_the_original_made_the_objects() -> TestResult {
    // Of each direction 2 in a round, and in full size 20 in all.
    let rounds = Size::asked().choose(1, 10);
    let mut events = 0;
    for _ in 0..rounds {
        events += handed_over_from_the_original(FromOriginal::rolled(1, &SystemRandomness)).await?;
    }
    println!(
        "{} hand-overs from the original's objects, {} of each direction, {events} events: all within the range",
        rounds * 12,
        rounds * 2
    );
    Ok(())
}

/// The original makes all of it and ends; ours takes it over and hands it over. Gives the events that were looked at.
async fn handed_over_from_the_original(cases: Vec<FromOriginal>) -> anyhow::Result<usize> {
    let region = Region::start().await?;
    let _keda = region.start_keda().await?;
    for FromOriginal { name, from, .. } in &cases {
        let mut asked = spec(u32::try_from(from.replicas)?, "0");
        from.apply(&mut asked);
        region.deploy(name, asked).await?;
    }
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    let original = Original::start(&region).await?;
    original.pass(&names).await?;
    for FromOriginal { name, from, .. } in &cases {
        handed(&region, name, *from).await.context("by the original")?;
    }
    original.pass(&names).await?;
    original.stop();
    let mut watched = Vec::new();
    for FromOriginal { name, to, early, .. } in &cases {
        let counts = region.counts(name).await?;
        let before = counts.all()?.last().copied().context("no count")?;
        if *early {
            region.edit(name, |spec| to.apply(spec)).await?;
        }
        watched.push((counts, before));
    }
    let monitor = Monitor::leading(&region).await?;
    for (FromOriginal { name, from, to, early }, (_, before)) in cases.iter().zip(&watched) {
        if !early {
            owned(&region, name, *from, (*before, *before)).await.with_context(|| monitor.described())?;
            region.edit(name, |spec| to.apply(spec)).await?;
        }
    }
    let mut events = 0;
    for (FromOriginal { name, from, to, early }, (counts, before)) in cases.iter().zip(&watched) {
        let target = to.target(*before);
        owned(&region, name, *to, (target, target)).await.with_context(|| monitor.described())?;
        let (low, high) = (*before.min(&target), *before.max(&target));
        let all = counts.all()?;
        let outside = all.iter().any(|count| !(low..=high).contains(count));
        ensure!(!outside, "{from:?} to {to:?} (early: {early}), from {before}: {all:?} leave {low} to {high}");
        events += all.len();
    }
    Ok(events)
}

/// Waits until nothing is left of an autoscaler and no pod is there.
async fn stopped(region: &Region, name: &str) -> anyhow::Result<()> {
    region.stop(name).await?;
    region.settled(name).await?;
    let entry = region.row(name).await?.context("no row")?.region_status[region.name()].clone();
    ensure!(entry.state == State::Stopped && entry.autoscaler.is_none(), "{entry:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_endpoint_has_no_pods_whoever_scaled_it_and_a_start_begins_within_the_bounds() -> TestResult {
    let region = Region::start().await?;
    let _keda = region.start_keda().await?;
    let _monitor = Monitor::leading(&region).await?;
    for (name, owner) in [("by-hpa", Owner::Kubernetes), ("by-keda", Owner::Keda)] {
        let ask = Ask { owner, replicas: 1, least: 2, most: 4 };
        let mut asked = spec(1, "0");
        ask.apply(&mut asked);
        region.deploy(name, asked).await?;
        owned(&region, name, ask, (2, 2)).await?;
        let counts: Counts = region.counts(name).await?;
        stopped(&region, name).await?;
        let seen = counts.all()?;
        let none = seen.iter().position(|count| *count == 0).context("never none")?;
        assert_eq!(seen[none..].iter().collect::<BTreeSet<_>>(), BTreeSet::from([&0]), "{owner:?}: {seen:?}");
        region.start_endpoint(name).await?;
        owned(&region, name, ask, (2, 2)).await?;
        let seen = counts.all()?;
        assert!(seen.iter().all(|count| [0, 2].contains(count)), "{owner:?}: {seen:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn new_bounds_are_one_update_of_the_autoscaler_and_none_of_the_deployment() -> TestResult {
    let region = Region::start().await?;
    let _keda = region.start_keda().await?;
    let _monitor = Monitor::leading(&region).await?;
    for (name, owner, kind) in
        [("by-hpa", Owner::Kubernetes, "horizontalpodautoscalers"), ("by-keda", Owner::Keda, "scaledobjects")]
    {
        let ask = Ask { owner, replicas: 2, least: 2, most: 4 };
        let mut asked = spec(2, "0");
        ask.apply(&mut asked);
        region.deploy(name, asked).await?;
        owned(&region, name, ask, (2, 2)).await?;
        let mark = region.audit()?.mark()?;
        let wider = Ask { least: 1, most: 6, ..ask };
        region.edit(name, |spec| wider.apply(spec)).await?;
        owned(&region, name, wider, (2, 2)).await?;
        let writes = region.monitor_writes_since(mark)?;
        let writes: Vec<(&str, &str)> =
            writes.iter().map(|event| (event.verb.as_str(), event.resource.as_str())).collect();
        assert_eq!(writes, [("update", kind)], "{owner:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_autoscaled_endpoint_at_rest_costs_no_call_and_is_purged_whole() -> TestResult {
    let region = Region::start().await?;
    let _keda = region.start_keda().await?;
    let monitor = Monitor::leading(&region).await?;
    let names = [("by-hpa", Owner::Kubernetes), ("by-keda", Owner::Keda)];
    for (name, owner) in names {
        let mut asked = spec(2, "0");
        Ask { owner, replicas: 2, least: 1, most: 4 }.apply(&mut asked);
        region.deploy(name, asked).await?;
    }
    for (name, _) in names {
        region.settled(name).await?;
    }
    let rows = [region.row("by-hpa").await?, region.row("by-keda").await?];
    let mark = region.audit()?.mark()?;
    for _ in 0..3 {
        monitor.full_pass().await?;
    }
    let user = region.monitor_user();
    // A watch that ends is begun again.
    let calls = region
        .requests_since(mark, |event| event.user == user && event.resource != "leases" && event.verb != "watch")?;
    assert_eq!(calls, []);
    let after = [region.row("by-hpa").await?, region.row("by-keda").await?];
    assert_eq!(rows.map(|row| row.map(|row| row.item)), after.map(|row| row.map(|row| row.item)));
    for (name, _) in names {
        region.delete(name).await?;
    }
    for (name, _) in names {
        region.purged(name).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_keda_is_told_on_the_row_that_needs_it_until_keda_comes() -> TestResult {
    // Of its own, so that no other test has installed the kind here.
    let settings = RegionSettings { plane: 1, ..RegionSettings::named("us-east-1") };
    let region = Region::start_with(settings, TestTable::embedded().await?).await?;
    let monitor = Monitor::leading(&region).await?;
    let ask = Ask { owner: Owner::Keda, replicas: 2, least: 1, most: 3 };
    let mut asked = spec(2, "0");
    ask.apply(&mut asked);
    region.deploy("needs", asked).await?;
    region.deploy("does-not", spec(1, "0")).await?;
    region.settled("needs").await?;
    region.settled("does-not").await?;
    let entry = entry_of(&region, "needs").await?;
    assert_eq!((entry.state.clone(), entry.replicas_ready, entry.degraded), (State::Running, 2, false));
    assert!(reason_of(&entry) == Some("KedaNotInstalled"), "{:?}", entry.conditions);
    assert_eq!(reason_of(&entry_of(&region, "does-not").await?), None);
    let said = |text: &str| -> anyhow::Result<usize> {
        Ok(monitor.log()?.iter().filter(|line| line["message"].as_str().is_some_and(|one| one.contains(text))).count())
    };
    assert_eq!(said("does not have this kind")?, 1);

    let _keda: Keda = region.start_keda().await?;
    owned(&region, "needs", ask, (2, 2)).await?;
    let entry = entry_of(&region, "needs").await?;
    assert!(reason_of(&entry) != Some("KedaNotInstalled"), "{:?}", entry.conditions);
    assert_eq!(said("has this kind now")?, 1);
    Ok(())
}

async fn entry_of(region: &Region, name: &str) -> anyhow::Result<RegionEntry> {
    let row = region.row(name).await?.context("no row")?;
    row.region_status.get(region.name()).cloned().context("no entry")
}

/// The reason of the condition about autoscaling.
fn reason_of(entry: &RegionEntry) -> Option<&str> {
    let found = entry.conditions.iter().find(|condition| condition.kind == "Autoscaling");
    found.map(|condition| condition.reason.as_str())
}
