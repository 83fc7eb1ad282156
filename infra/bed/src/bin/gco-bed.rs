//! `gco-bed`: control planes and a table server for use by hand.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};
use futures::future::try_join_all;
use gco_bed::binaries::Binaries;
use gco_bed::cache::Cache;
use gco_bed::control_plane::{ControlPlane, ControlPlaneSettings};
use gco_bed::table_server::{Kind, TableServer};
use gco_runtime::environment::Environment;
use gco_runtime::shutdown;

/// Real Kubernetes control planes and a DynamoDB protocol server on loopback.
#[derive(Parser)]
#[command(name = "gco-bed", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start regions and, when asked for, a table server; run until interrupted.
    Up {
        /// How many regions.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
        regions: u8,
        /// Also run kube-scheduler in each.
        #[arg(long)]
        scheduler: bool,
        /// Also run this table server.
        #[arg(long, value_enum)]
        tables: Option<Tables>,
        /// Keep the regions' data in this folder instead of throwing it away.
        #[arg(long)]
        data: Option<PathBuf>,
    },
    /// Build and install everything that the bed needs, and end.
    Prepare,
}

#[derive(Clone, Copy, ValueEnum)]
enum Tables {
    Ministack,
    Dynalite,
    Moto,
}

impl From<Tables> for Kind {
    fn from(tables: Tables) -> Self {
        match tables {
            Tables::Ministack => Self::Ministack,
            Tables::Dynalite => Self::Dynalite,
            Tables::Moto => Self::Moto,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Prepare => prepare().await,
        Command::Up { regions, scheduler, tables, data } => up(regions, scheduler, tables, data).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gco-bed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn prepare() -> anyhow::Result<()> {
    let binaries = Binaries::ready().await?;
    for program in
        [&binaries.etcd, &binaries.kube_apiserver, &binaries.kube_controller_manager, &binaries.kube_scheduler]
    {
        println!("{}", program.display());
    }
    let cache = Cache::from_environment(&Environment::process())?;
    for kind in Kind::ALL {
        println!("{}", kind.prepare(&cache).await?.display());
    }
    Ok(())
}

async fn up(regions: u8, scheduler: bool, tables: Option<Tables>, data: Option<PathBuf>) -> anyhow::Result<()> {
    let interrupted = shutdown::install().context("listening for signals")?;
    let mut running = Running::default();
    // What has started when the signal comes is ended in order; what has not, when it is dropped.
    let outcome = tokio::select! {
        outcome = start(&mut running, regions, scheduler, tables, data) => outcome,
        () = interrupted.cancelled() => Ok(()),
    };
    if outcome.is_ok() && !interrupted.is_cancelled() {
        running.print();
        interrupted.cancelled().await;
    }
    eprintln!("gco-bed: stopping");
    running.stop().await;
    outcome
}

#[derive(Default)]
struct Running {
    planes: Vec<ControlPlane>,
    tables: Option<TableServer>,
}

async fn start(
    running: &mut Running,
    regions: u8,
    scheduler: bool,
    tables: Option<Tables>,
    data: Option<PathBuf>,
) -> anyhow::Result<()> {
    Binaries::ready().await?;
    if let Some(tables) = tables {
        running.tables = Some(TableServer::start(tables.into()).await?);
        eprintln!("gco-bed: the table server answers");
    }
    let starting = (1..=regions).map(|number| {
        let name = format!("region-{number}");
        let data_dir = data.as_ref().map(|folder| folder.join(&name));
        async move {
            let settings = ControlPlaneSettings { data_dir, scheduler, ..ControlPlaneSettings::named(&name) };
            let plane = ControlPlane::start(settings).await.with_context(|| format!("starting {name}"))?;
            eprintln!("gco-bed: {name} is ready");
            anyhow::Ok(plane)
        }
    });
    running.planes = try_join_all(starting).await?;
    Ok(())
}

impl Running {
    fn print(&self) {
        for plane in &self.planes {
            let kubeconfig = plane.kubeconfig_path();
            println!("{}  {}", plane.name(), plane.url());
            println!("  export KUBECONFIG={}", kubeconfig.display());
            println!("  kubectl get all --all-namespaces");
            let certificate = plane.certificate_authority_path();
            let token = plane.folder().join("admin.token");
            println!(
                "  curl --cacert {} -H \"Authorization: Bearer $(cat {})\" {}/version",
                certificate.display(),
                token.display(),
                plane.url()
            );
        }
        if let Some(tables) = &self.tables {
            println!("tables  {}", tables.url());
            println!("  aws dynamodb list-tables --endpoint-url {} --region us-east-1", tables.url());
        }
        println!("Ctrl-C ends everything.");
    }

    async fn stop(self) {
        futures::future::join_all(self.planes.into_iter().map(ControlPlane::stop)).await;
        if let Some(tables) = self.tables {
            tables.stop().await;
        }
    }
}
