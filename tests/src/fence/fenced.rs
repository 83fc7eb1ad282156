//! A cluster in which the fence can be put up, taken down and broken.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gco_bed::control_plane::AnotherApiServer;
use gco_bed::wait;
use gco_local::platform::{self, FENCE_BINDINGS, FENCE_KEEPER};
use http::Method;
use serde_json::json;
use tokio::time::Instant;

use super::NAMESPACE;
use super::calls::{Caller, lease_path};
use super::kinds::{Target, granted_deeds, make_optional_kinds};
use super::takeover::{Actors, lease_term};
use crate::region::{BOUND, Region, RegionSettings, TestTable};

/// The object that the probes pretend to change.
const PROBE: &str = "fence-probe";

/// A region in the namespace that the fence holds in, and everybody who acts there.
#[derive(Debug)]
pub struct Fenced {
    /// The region.
    pub region: Region,
    /// Monitor's account at each server, an administrator, the writes.
    pub actors: Actors,
    _other_servers: Vec<AnotherApiServer>,
}

impl Fenced {
    /// A region on a control plane of this binary, with this many API servers. Nothing is bound yet.
    ///
    /// # Errors
    /// When a part of it does not start.
    pub async fn start(plane: usize, servers: usize) -> anyhow::Result<Self> {
        let settings =
            RegionSettings { plane, namespace: Some(NAMESPACE.to_owned()), ..RegionSettings::named("us-east-1") };
        let mut region = Region::start_with(settings, TestTable::embedded().await?).await?;
        // The old leader tries what a monitor would not.
        region.do_not_record_rights();
        let control_plane = region.plane().control_plane();
        let mut urls = vec![control_plane.url()];
        let mut other_servers = Vec::new();
        for number in 2..=servers {
            let server = control_plane.another_api_server(&format!("kube-apiserver-{number}")).await?;
            urls.push(server.url());
            other_servers.push(server);
        }
        let monitor =
            urls.iter().map(|url| Ok(Caller::new(control_plane.client_with_token(url, region.monitor_token())?)));
        let monitor: Vec<Caller> = monitor.collect::<anyhow::Result<_>>()?;
        make_optional_kinds(region.client()).await?;
        let admin = Caller::new(region.client().clone());
        let fenced =
            Self { region, actors: Actors { monitor, admin, deeds: granted_deeds()? }, _other_servers: other_servers };
        fenced.make_probe().await?;
        Ok(fenced)
    }

    /// An object under term 5 that probes are made on.
    async fn make_probe(&self) -> anyhow::Result<()> {
        let target = Target::named("configmaps")?;
        let reply = self.actors.admin.create(&target, &target.object(PROBE, 5, "probe"), "").await?;
        ensure!(reply.is_success() || reply.status == 409, "making the probe: {}", reply.body);
        Ok(())
    }

    /// Puts the fence up as it is installed, and waits until it is in force at every server.
    ///
    /// # Errors
    /// When it does not come into force.
    pub async fn put_up(&self) -> anyhow::Result<()> {
        platform::apply_all(self.region.client(), &[FENCE_BINDINGS]).await?;
        // The Lease rule needs a Lease to judge by.
        let term = lease_term(&self.actors.admin).await?;
        for caller in &self.actors.monitor {
            wait::until("the order rule to be in force", BOUND, || {
                refused(self.older_update(caller), "gco-term-order")
            })
            .await?;
            if term > 0 {
                wait::until("the Lease rule to be in force", BOUND, || {
                    refused(self.create_under(caller, term - 1), "gco-term-lease")
                })
                .await?;
            }
        }
        Ok(())
    }

    /// Takes the fence down, and waits until every server accepts writes without a term.
    ///
    /// # Errors
    /// When it stays in force.
    pub async fn take_down(&self) -> anyhow::Result<()> {
        platform::delete_all(self.region.client(), FENCE_BINDINGS).await?;
        for caller in &self.actors.monitor {
            wait::until("the fence to be down", BOUND, || async {
                let reply = self.older_update(caller).await.map_err(|error| format!("{error:#}"))?;
                let create = self.create_under(caller, 0).await.map_err(|error| format!("{error:#}"))?;
                let down = reply.is_success() && create.is_success();
                if down { Ok(()) } else { Err(format!("{} {}", reply.message(), create.message())) }
            })
            .await?;
        }
        Ok(())
    }

    /// A dry run of an update with a term older than the probe's.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn older_update(&self, caller: &Caller) -> anyhow::Result<super::calls::Reply> {
        let target = Target::named("configmaps")?;
        let path = format!("{}?dryRun=All", target.path(PROBE));
        let body = json!({"metadata": {"annotations": {"gco.io/leader-term": "4"}}});
        caller.send(Method::PATCH, &path, Some(("application/merge-patch+json", &body))).await
    }

    /// A dry run of a create under a term.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn create_under(&self, caller: &Caller, term: u64) -> anyhow::Result<super::calls::Reply> {
        let target = Target::named("services")?;
        caller.create(&target, &target.object("fence-probe-create", term, "probe"), "?dryRun=All").await
    }

    /// Sets the Lease's count, as a take-over does; nobody holds it afterwards.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn set_lease_term(&self, term: u64) -> anyhow::Result<()> {
        let spec = json!({"leaseTransitions": term, "holderIdentity": null, "leaseDurationSeconds": 1});
        let body = json!({"metadata": {"name": "inference-monitor-leader", "namespace": NAMESPACE}, "spec": spec});
        let admin = &self.actors.admin;
        let merge = ("application/merge-patch+json", &body);
        let mut reply = admin.send(Method::PATCH, &lease_path(), Some(merge)).await?;
        if reply.status == 404 {
            let path = lease_path();
            let collection = path.rsplit_once('/').context("no path")?.0.to_owned();
            reply = admin.send(Method::POST, &collection, Some(("application/json", &body))).await?;
        }
        ensure!(reply.is_success(), "writing the Lease: {}", reply.body);
        Ok(())
    }

    /// Breaks the Lease rule in the way that it breaks by itself: with nothing bound that has a Lease as parameter, servers
    /// stop following Leases, and do not begin again when something is. Returns when every server judges by an old Lease.
    ///
    /// # Errors
    /// When no server can be brought to it.
    pub async fn freeze_the_parameter(&self) -> anyhow::Result<()> {
        let first = lease_term(&self.actors.admin).await?.max(10);
        for attempt in 0..8 {
            platform::delete_all(self.region.client(), FENCE_BINDINGS).await?;
            platform::delete_all(self.region.client(), FENCE_KEEPER).await?;
            // Nothing shows that a server has stopped following; it is done a second or two after the last binding went.
            let gone = Duration::from_secs(3 + attempt);
            let began = Instant::now();
            wait::until("servers to have given up following the Lease", BOUND, || {
                let away = began.elapsed();
                std::future::ready(if away >= gone { Ok(()) } else { Err(format!("away for {away:?}")) })
            })
            .await?;
            let term = first + attempt * 10;
            self.set_lease_term(term).await?;
            self.bind().await?;
            self.set_lease_term(term + 5).await?;
            if self.every_server_accepts_for(term + 4, Duration::from_secs(4)).await? {
                return Ok(());
            }
        }
        anyhow::bail!("servers went on following the Lease although nothing had it as a parameter")
    }

    /// Binds both policies, and waits for the one that shows that the servers have taken the bindings in.
    async fn bind(&self) -> anyhow::Result<()> {
        platform::apply_all(self.region.client(), &[FENCE_BINDINGS]).await?;
        for caller in &self.actors.monitor {
            wait::until("the order rule to be in force", BOUND, || {
                refused(self.older_update(caller), "gco-term-order")
            })
            .await?;
        }
        Ok(())
    }

    /// Whether every server goes on accepting creates under a term for a while.
    async fn every_server_accepts_for(&self, term: u64, span: Duration) -> anyhow::Result<bool> {
        let began = Instant::now();
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        while began.elapsed() < span {
            ticks.tick().await;
            for caller in &self.actors.monitor {
                let reply = self.create_under(caller, term).await?;
                if !reply.is_success() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// One look of a wait for a refusal.
async fn refused(
    sending: impl Future<Output = anyhow::Result<super::calls::Reply>>,
    policy: &str,
) -> Result<(), String> {
    match sending.await {
        Ok(reply) if reply.is_refused_by(policy) => Ok(()),
        Ok(reply) => Err(format!("{}: {}", reply.status, reply.message())),
        Err(error) => Err(format!("{error:#}")),
    }
}
