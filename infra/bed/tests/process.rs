//! Child processes end when they should, and never outlive their owner.
#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use gco_bed::process::{ProcessSettings, Supervised};
use gco_bed::wait;
use nix::sys::signal::Signal;

const BOUND: Duration = Duration::from_secs(20);

fn shell(script: &str, folder: &Path) -> ProcessSettings {
    ProcessSettings::new("sh", folder.join("log")).arguments(["-c", script])
}

async fn logged(process: &Supervised, wanted: &str) {
    let look = || {
        let log = process.log_tail();
        std::future::ready(if log.contains(wanted) { Ok(()) } else { Err(log) })
    };
    wait::until(&format!("{wanted:?} in the log"), BOUND, look).await.unwrap();
}

/// The letter of a process's state in the kernel's words; `None` when it is gone.
fn state(pid: i32) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    status.rsplit_once(") ")?.1.chars().next()
}

async fn gone(what: &str, pids: &[i32]) {
    let look = || {
        // A zombie has ended; whoever has to collect it is not us.
        let alive: Vec<_> = pids.iter().filter(|pid| state(**pid).is_some_and(|state| state != 'Z')).collect();
        std::future::ready(if alive.is_empty() { Ok(()) } else { Err(format!("{alive:?} still run")) })
    };
    wait::until(what, BOUND, look).await.unwrap();
}

#[tokio::test]
async fn the_process_id_is_the_programs_own_and_so_is_its_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let process = Supervised::start(shell("echo pid $$; exit 7", folder.path())).unwrap();
    assert_eq!(process.wait().await.code(), Some(7));
    assert_eq!(process.log_tail(), format!("pid {}", process.pid()));
    assert!(!process.is_running());
    assert!(!process.signal(Signal::SIGTERM).unwrap(), "nobody is there to be signalled");
    assert_eq!(process.stop(BOUND).await.code(), Some(7));
}

#[tokio::test]
async fn arguments_and_variables_arrive_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let settings = shell("printf '%s|%s|%s' \"$1\" \"$GIVEN\" \"${HOME-unset}\"; pwd", folder.path())
        .arguments(["name", "a \"b\" $c\n*"])
        .variable("GIVEN", "x y")
        .without_our_environment()
        .working_dir(folder.path());
    let process = Supervised::start(settings).unwrap();
    assert!(process.wait().await.success());
    let here = folder.path().canonicalize().unwrap();
    assert_eq!(process.log_tail(), format!("a \"b\" $c\n*|x y|unset{}", here.display()));
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    for program in ["/nonexistent/program", "no-such-program"] {
        let error = Supervised::start(ProcessSettings::new(program, folder.path().join("log"))).unwrap_err();
        assert!(error.to_string().contains(program), "{error}");
    }
}

#[tokio::test]
async fn stopping_is_polite_first_and_kills_after_the_grace() {
    let folder = tempfile::tempdir().unwrap();
    let polite = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done";
    let process = Supervised::start(shell(polite, folder.path())).unwrap();
    logged(&process, "up").await;
    assert_eq!(process.stop(BOUND).await.code(), Some(3));
    assert!(process.log_tail().ends_with("bye"));

    let folder = tempfile::tempdir().unwrap();
    let deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let process = Supervised::start(shell(deaf, folder.path())).unwrap();
    logged(&process, "up").await;
    let status = process.stop(Duration::from_millis(200)).await;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
}

#[tokio::test]
async fn a_program_can_be_paused_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let process = Supervised::start(shell("echo up; while :; do sleep 0.05; done", folder.path())).unwrap();
    logged(&process, "up").await;
    let is = async |wanted: bool| {
        let look = || {
            let now = state(process.pid());
            std::future::ready(if (now == Some('T')) == wanted { Ok(()) } else { Err(format!("{now:?}")) })
        };
        wait::until("the state", BOUND, look).await.unwrap();
    };
    assert!(process.pause().unwrap());
    is(true).await;
    assert!(process.resume().unwrap());
    is(false).await;
    process.pause().unwrap();
    // Even a paused program obeys a stop.
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&process.stop(BOUND).await), Some(15));
}

#[tokio::test]
async fn dropping_the_handle_ends_the_program_and_what_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let process = Supervised::start(shell("sleep 1000 & echo child $!; wait", folder.path())).unwrap();
    logged(&process, "child ").await;
    let grandchild: i32 = process.log_tail().trim_start_matches("child ").trim().parse().unwrap();
    let pid = process.pid();
    drop(process);
    assert_eq!(state(pid), None, "it was collected");
    gone("the program's own child to end", &[grandchild]).await;
}

/// All descendants of a process.
fn descendants(owner: i32) -> Vec<i32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<i32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut found = vec![owner];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

#[tokio::test]
async fn an_owner_that_is_killed_takes_its_control_plane_and_tables_along() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("output");
    let mut owner = Command::new(env!("CARGO_BIN_EXE_gco-bed"))
        .args(["up", "--tables", "dynalite", "--scheduler", "--data"])
        .arg(folder.path().join("data"))
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&output).unwrap())
        .spawn()
        .unwrap();
    let look = || {
        let printed = std::fs::read_to_string(&output).unwrap();
        std::future::ready(if printed.contains("Ctrl-C") { Ok(()) } else { Err(printed) })
    };
    // The first run on a machine builds the programs.
    wait::until("everything to be up", Duration::from_secs(3600), look).await.unwrap();
    let pid = i32::try_from(owner.id()).unwrap();
    let children = descendants(pid);
    // Five programs, each with its watcher.
    assert!(children.len() >= 10, "{children:?}");
    owner.kill().unwrap();
    owner.wait().unwrap();
    gone("all children to end", &children).await;
}

#[tokio::test]
async fn an_interrupted_owner_ends_everything_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ProcessSettings::new(env!("CARGO_BIN_EXE_gco-bed"), folder.path().join("log")).arguments([
        "up",
        "--regions",
        "2",
        "--tables",
        "ministack",
    ]);
    let owner = Supervised::start(settings).unwrap();
    let printed = || {
        let text = std::fs::read_to_string(owner.log_file()).unwrap_or_default();
        std::future::ready(if text.contains("Ctrl-C") { Ok(text) } else { Err(text) })
    };
    let text = wait::until("everything to be up", Duration::from_secs(3600), printed).await.unwrap();
    assert!(text.contains("region-1") && text.contains("region-2") && text.contains("tables  http://127.0.0.1:"));
    let children = descendants(owner.pid());
    assert!(owner.signal(Signal::SIGINT).unwrap());
    let status = tokio::time::timeout(Duration::from_secs(60), owner.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", owner.log_tail());
    gone("all children to end", &children).await;
}

#[tokio::test]
async fn the_members_are_the_program_and_its_children_without_the_watcher() {
    let folder = tempfile::tempdir().unwrap();
    let process = Supervised::start(shell("sleep 60 & echo child $!; wait", folder.path())).unwrap();
    logged(&process, "child ").await;
    let tail = process.log_tail();
    let child: i32 = tail.split("child ").nth(1).unwrap().trim().parse().unwrap();
    let mut members = process.members();
    members.sort_unstable();
    let mut expected = vec![process.pid(), child];
    expected.sort_unstable();
    assert_eq!(members, expected);
}
