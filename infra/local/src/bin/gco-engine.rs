//! `gco-engine`: the simulated model server. It takes the argument list of a real one.

use std::process::ExitCode;

use gco_local::engine::{self, Ended, EngineArguments, EngineSettings};
use gco_runtime::environment::Environment;
use gco_runtime::log::LogSettings;

/// The exit code of argument parsers.
const EXIT_CODE_BAD_ARGUMENTS: u8 = 2;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("gco-engine: {problem:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<ExitCode> {
    let environment = Environment::process();
    let bad = |problem: &dyn std::fmt::Display| {
        eprintln!("gco-engine: {problem}");
        Ok(ExitCode::from(EXIT_CODE_BAD_ARGUMENTS))
    };
    let arguments = match EngineArguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => return bad(&problem),
    };
    let settings = match EngineSettings::new(arguments, &environment) {
        Ok(settings) => settings,
        Err(problem) => return bad(&problem),
    };
    let mut reader = environment.reader();
    let log = LogSettings::read(&mut reader, "engine", &settings.identity.pod, &settings.identity.region);
    if let Err(problem) = reader.finish() {
        return bad(&problem);
    }
    gco_runtime::log::init(log)?;
    let stop = gco_runtime::shutdown::install()?;

    let port = settings.arguments.port;
    let listener = match engine::listen(port).await {
        Ok(listener) => listener,
        Err(problem) if problem.kind() == std::io::ErrorKind::AddrInUse => {
            tracing::error!(port, "the port is taken");
            return Ok(ExitCode::from(engine::EXIT_CODE_PORT_TAKEN));
        }
        Err(problem) => return Err(problem.into()),
    };
    // Whoever asked for port 0 reads here which one it became.
    tracing::info!(
        port = listener.local_addr()?.port(),
        model = settings.arguments.model,
        root_path = settings.arguments.root_path,
        "listening"
    );
    let ended = match engine::serve(settings, listener, stop.cancelled_owned()).await {
        Err(problem) if problem.kind() == std::io::ErrorKind::AddrInUse => {
            tracing::error!("the port of the bootstrap server or the side channel is taken");
            return Ok(ExitCode::from(engine::EXIT_CODE_PORT_TAKEN));
        }
        ended => ended?,
    };
    Ok(match ended {
        Ended::Drained => ExitCode::SUCCESS,
        Ended::GraceOver => {
            tracing::warn!("the grace is over; open requests were cut off");
            ExitCode::SUCCESS
        }
        Ended::Crashed { exit_code } => ExitCode::from(exit_code),
    })
}
