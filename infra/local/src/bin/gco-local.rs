//! `gco-local`: regions on this machine. `gco local …` hands over to it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use gco_local::engine::Connector;
use gco_local::instance::{self, DataFolder, InstanceState, SplitSettings, UpSettings};
use gco_runtime::environment::Environment;

/// Regions on this machine: real control planes, nodes, the real monitor, and a simulated engine
/// behind every pod.
#[derive(Debug, Parser)]
#[command(name = "gco local", bin_name = "gco local", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start regions and keep them running until Ctrl-C
    Up(UpArguments),
    /// Tell where everything of the running instance is
    Status {
        #[command(flatten)]
        place: Place,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop the running instance; rows and objects are kept
    Down {
        #[command(flatten)]
        place: Place,
    },
    /// Delete everything that is kept: rows, objects, logs
    Reset {
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Debug, Args)]
struct Place {
    /// Where rows, objects and logs are kept [default: GCO_LOCAL when it is a folder, else gco-local in the user's
    /// data folder]
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct UpArguments {
    #[command(flatten)]
    place: Place,
    /// A region to run (repeat)
    #[arg(long = "region", value_name = "REGION", default_values_t = ["us-east-1".to_owned(), "eu-west-1".to_owned()])]
    regions: Vec<String>,
    /// A server that speaks the DynamoDB protocol, instead of a file in the data folder
    #[arg(long, value_name = "ADDRESS")]
    dynamodb_endpoint: Option<String>,
    /// Deploy a sample endpoint and show an answer from each region
    #[arg(long)]
    sample: bool,
    /// Start a prefill engine with these arguments behind a prefill-decode proxy (repeat)
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true, requires = "decode")]
    prefill: Vec<String>,
    /// Start a decode engine with these arguments behind a prefill-decode proxy (repeat)
    #[arg(long, value_name = "ARGUMENTS", allow_hyphen_values = true)]
    decode: Vec<String>,
    /// How the KV cache moves between these engines
    #[arg(long, value_name = "CONNECTOR", value_parser = ["mooncake", "nixl"], default_value = "mooncake", requires = "decode")]
    connector: String,
    /// Where the proxy listens [default: any free port]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true, requires = "decode")]
    proxy_port: u16,
    /// No regions: only the proxy and its engines
    #[arg(long, requires = "decode", conflicts_with_all = ["regions", "sample"])]
    only_proxy: bool,
    /// Stop everything once the sample has answered
    #[arg(long, requires = "sample")]
    then_stop: bool,
}

impl Place {
    fn folder(self, environment: &Environment) -> anyhow::Result<PathBuf> {
        let of_variable = environment.non_empty("GCO_LOCAL").filter(|value| value.contains('/')).map(PathBuf::from);
        match self.data_dir.or(of_variable) {
            Some(folder) => Ok(folder),
            None => DataFolder::default_path(environment),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("gco local: {problem:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let environment = Environment::process();
    match arguments.verb {
        Verb::Up(up) => {
            let stop = gco_runtime::shutdown::install()?;
            let settings = UpSettings {
                regions: if up.only_proxy { Vec::new() } else { up.regions },
                split: (!up.decode.is_empty()).then_some(SplitSettings {
                    prefill: up.prefill,
                    decode: up.decode,
                    connector: if up.connector == "nixl" { Connector::Nixl } else { Connector::Mooncake },
                    proxy_port: up.proxy_port,
                }),
                data_dir: up.place.folder(&environment)?,
                dynamodb_endpoint: up.dynamodb_endpoint,
                sample: up.sample,
                then_stop: up.then_stop,
            };
            instance::up(&settings, &environment, stop).await
        }
        Verb::Status { place, json } => {
            let state = instance::status(&place.folder(&environment)?)?;
            if json {
                println!("{}", serde_json::to_string_pretty(&state)?);
            } else {
                print_state(&state);
            }
            Ok(())
        }
        Verb::Down { place } => {
            instance::down(&place.folder(&environment)?).await?;
            eprintln!("stopped; rows and objects are kept");
            Ok(())
        }
        Verb::Reset { place } => {
            let deleted = instance::reset(&place.folder(&environment)?).await?;
            eprintln!("deleted {}", deleted.display());
            Ok(())
        }
    }
}

fn print_state(state: &InstanceState) {
    println!("process   {}", state.pid);
    println!("table     {}", state.table_endpoint_url.as_deref().unwrap_or(&state.table));
    if let Some(proxy) = &state.proxy {
        println!("proxy     {proxy}");
    }
    for region in &state.regions {
        println!("\nregion    {}", region.name);
        println!("gateway   {}/inference/<endpoint>/v1/…", region.gateway);
        println!("monitor   {}  (log: {})", region.monitor, region.monitor_log.display());
        println!("cluster   {}  (KUBECONFIG={})", region.api_server, region.kubeconfig.display());
        println!("pods      {}", region.pod_logs.display());
    }
}
