//! `gco-proxy-bench`: measures gco-proxy and its peers, and writes one report. `tests/proxy-bench.sh` builds and starts it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Parser;
use gco_bed::cache::Cache;
use gco_proxy_bench::cells::Mode;
use gco_proxy_bench::peers::Contender;
use gco_proxy_bench::run::{Plan, Report, effort, report_again, run};
use gco_proxy_bench::{install, machine};
use gco_runtime::clock::{Clock as _, SystemClock};
use gco_runtime::environment::Environment;
use gco_runtime::shutdown;
use serde_json::{Value, json};

/// Measures gco-proxy beside its peers.
#[derive(Debug, Parser)]
#[command(name = "gco-proxy-bench", version)]
struct Arguments {
    /// The release build of gco-proxy.
    #[arg(long)]
    gco_proxy: Option<PathBuf>,
    /// Where report.md and results.jsonl go.
    #[arg(long, default_value = "proxy-bench-results")]
    output: PathBuf,
    /// How many rounds; 6, or 2 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Which peers, with commas. Empty: none.
    #[arg(long, default_value = "nginx,haproxy,envoy,vllm-router,sglang-router,smg")]
    peers: String,
    /// Which modes, with commas.
    #[arg(long, default_value = "main,rate,two,memory,slow")]
    modes: String,
    /// Two rounds of half the length: to see that it works, not to judge by.
    #[arg(long)]
    quick: bool,
    /// What decides about the order within each round.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What the report says of where gco-proxy comes from.
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// Only get the peers.
    #[arg(long)]
    prepare: bool,
    /// Only make the report anew from the results in --output.
    #[arg(long)]
    report: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.context("no runtime").and_then(|runtime| runtime.block_on(go(&arguments)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proxy-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn go(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.report {
        say(&report_again(&arguments.output)?);
        return Ok(());
    }
    let peers = named(&arguments.peers, Contender::named, "peers", Contender::ALL.map(Contender::name).as_slice())?;
    let modes = named(&arguments.modes, Mode::named, "modes", Mode::ALL.map(Mode::name).as_slice())?;
    machine::allow_open_files()?;
    let cache = Cache::from_environment(&Environment::process())?;
    let (mut installed, mut missing) = (BTreeMap::new(), Vec::new());
    for peer in peers.into_iter().filter(|peer| !peer.is_base() && *peer != Contender::GcoProxy) {
        match install::peer(&cache, peer).await {
            Ok(found) => {
                installed.insert(peer, found);
            }
            Err(error) => {
                eprintln!("proxy-bench: going on without {}: {error:#}", peer.name());
                missing.push((peer, format!("{error:#}")));
            }
        }
    }
    if arguments.prepare {
        return Ok(());
    }
    let program = arguments.gco_proxy.as_deref().context("--gco-proxy says where the proxy's release build is")?;
    installed.insert(Contender::GcoProxy, install::gco_proxy(program, &arguments.commit)?);
    let plan = Plan {
        installed,
        missing,
        modes,
        effort: effort(arguments.rounds, arguments.quick),
        seed: arguments.seed,
        folder: arguments.output.clone(),
    };
    let stop = shutdown::install().context("no signal handlers")?;
    let about = about(arguments, &plan);
    tokio::select! {
        report = run(&plan, &about, &cache) => say(&report?),
        // Everything that was started is dropped with the run, and ends by that.
        () = stop.cancelled() => anyhow::bail!("stopped; results so far are in {}", arguments.output.display()),
    }
    Ok(())
}

/// The gates, and where the rest is.
fn say(report: &Report) {
    println!("{}\nEvery figure: {}", report.gates, report.path.display());
}

/// The things of a list with commas.
fn named<T>(list: &str, find: impl Fn(&str) -> Option<T>, what: &str, known: &[&str]) -> anyhow::Result<Vec<T>> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let found =
        names.map(|name| find(name).with_context(|| format!("--{what} {name}: known are {}", known.join(", "))));
    let found: Vec<T> = found.collect::<anyhow::Result<_>>()?;
    ensure!(!found.is_empty() || what == "peers", "--{what} names nothing; known are {}", known.join(", "));
    Ok(found)
}

/// What the report says before its figures.
fn about(arguments: &Arguments, plan: &Plan) -> Value {
    let contenders = plan.installed.values();
    let contenders: Vec<Value> =
        contenders.map(|peer| json!({"name": peer.contender.name(), "version": peer.version})).collect();
    let missing: Vec<Value> =
        plan.missing.iter().map(|(peer, reason)| json!({"name": peer.name(), "reason": reason})).collect();
    let effort = plan.effort;
    json!({
        "date": SystemClock.wall().to_string(),
        "machine": machine::description(),
        "commit": arguments.commit,
        "arguments": format!(
            "{} rounds, measured times × {}, modes {}, seed {}",
            effort.rounds,
            effort.time,
            plan.modes.iter().map(|mode| mode.name()).collect::<Vec<_>>().join(" "),
            plan.seed
        ),
        "contenders": contenders,
        "missing": missing,
    })
}
