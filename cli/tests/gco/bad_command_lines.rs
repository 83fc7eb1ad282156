//! Command lines that are wrong: one clear message, nothing read, nothing written.

use std::collections::BTreeSet;

use crate::house::{House, run};

/// Arguments after `inference`, what the message must name, and the exit code.
const BAD: [(&str, &str, i32); 59] = [
    // deploy
    ("deploy talk -r us-east-1", "--image: is required", 2),
    ("deploy talk -r us-east-1 -i", "--image", 2),
    ("deploy", "<ENDPOINT_NAME>", 2),
    ("deploy Talk -i x:1 -r us-east-1", "ENDPOINT_NAME: ", 2),
    ("deploy 7b -i x:1 -r us-east-1", "ENDPOINT_NAME: ", 2),
    ("deploy talk-canary -i x:1 -r us-east-1", "ENDPOINT_NAME: must not end in \"-canary\"", 2),
    (
        "deploy talk-talk-talk-talk-talk-talk-talk-talk-talk-talk-talk-talk -i x:1 -r us-east-1",
        "ENDPOINT_NAME: must be at most 55",
        2,
    ),
    ("deploy talk -i x:1 -r us-east-1 --replicas 0", "--replicas: ", 2),
    ("deploy talk -i x:1 -r us-east-1 --replicas -1", "--replicas: ", 2),
    ("deploy talk -i x:1 -r us-east-1 --replicas 1.5", "--replicas: must be an integer", 2),
    ("deploy talk -i x:1 -r us-east-1 --replicas 1001", "--replicas: ", 2),
    ("deploy talk -i x:1 -r us-east-1 --port 70000", "--port: ", 2),
    ("deploy talk -i x:1 -r us-east-1 --gpu-count 65", "--gpu-count: ", 2),
    ("deploy talk -i x:1 -r us-east-1 --health-path ready", "--health-path: ", 2),
    ("deploy talk -i x:1 -r us-east-1 -e TOKEN", "--env (number 1): must be of the form NAME=VALUE", 2),
    ("deploy talk -i x:1 -r us-east-1 -e A=1 -e A=2", "--env (number 2): names 'A' a second time", 2),
    ("deploy talk -i x:1 -r us-east-1 -l team", "--label (number 1): ", 2),
    ("deploy talk -i x:1 -r us-east-1 --node-selector zone", "--node-selector (number 1): ", 2),
    ("deploy talk -i x:1 -r us-east-1 --request cpu", "--request (number 1): ", 2),
    ("deploy talk -i x:1 -r us-east-1 --limit memory=plenty", "--limit memory: must be a quantity", 2),
    ("deploy talk -i x:1 -r us-east-1 --request cpu=4 --limit cpu=2", "--request cpu: must be at most the limit", 2),
    ("deploy talk -i x:1 -r us-east-1 --capacity-type cheap", "--capacity-type: must be 'on-demand' or 'spot'", 2),
    ("deploy talk -i x:1 -r us-east-1 --accelerator tpu", "--accelerator: must be 'nvidia' or 'neuron'", 2),
    ("deploy talk -i x:1 -r us-east-1 --framework sglang", "--framework: must be 'vllm' or 'tgi'", 2),
    ("deploy talk -i x:1 -r us-east-1 -n default", "--namespace: must be gco-inference", 2),
    ("deploy talk -i x:1 -r us-east-1 --startup-timeout-seconds 5", "--startup-timeout-seconds: ", 2),
    ("deploy talk -i x:1 -r us-east-1 --drain-seconds 1h", "--drain-seconds: must be an integer", 2),
    ("deploy talk -i x:1 -r us-east-1 --max-surge 101", "--max-surge: ", 2),
    ("deploy talk -i x:1 -r us_east_1", "--region: must be a region's name", 2),
    ("deploy talk -i x:1 -r us-east-1,eu-west-1", "--region: must be a region's name", 2),
    ("deploy talk -i x:1 -r us-east-1 --timeout-seconds 5", "--timeout-seconds: needs --wait", 2),
    ("deploy talk -i x:1 -r us-east-1 --wait --timeout-seconds soon", "--timeout-seconds: ", 2),
    ("deploy talk -i x:1 -r us-east-1 --wait --dry-run", "--wait: cannot be used with --dry-run", 2),
    ("deploy talk -i x:1 -r us-east-1 --mooncake-mode store", "--mooncake-mode", 2),
    ("deploy talk -i x:1 -r us-east-1 --min-replicas 2", "--min-replicas", 2),
    // the other verbs
    ("scale chat", "--replicas", 2),
    ("scale chat -r 0", "--replicas: must be from 1 to 1000, got 0", 2),
    ("update-image chat -i ", "--image", 2),
    ("delete chat", "--yes: is needed", 2),
    ("stop chat", "--yes: is needed", 2),
    ("refresh", "ENDPOINT_NAME: or --all is needed", 2),
    ("refresh chat --all", "--all: cannot be used with ENDPOINT_NAME", 2),
    ("refresh --all", "--yes: is needed", 2),
    ("refresh chat --at-once 0", "--at-once: must be from 1 to 1000, got 0", 2),
    ("refresh chat --clear", "--clear: is for whole regions", 2),
    ("refresh chat -r us-east-1", "--region: needs --clear", 2),
    ("list -s sleeping", "--state: must be 'deploying' or 'running' or 'stopped' or 'deleted'", 2),
    ("status chat --until running", "--until: needs --watch", 2),
    ("status chat --output xml", "--output: must be 'table' or 'json' or 'yaml'", 2),
    ("canary chat", "--image", 2),
    ("canary chat -i x:2 -w 100", "--weight: Canary weight must be an integer between 1 and 99, got 100", 2),
    ("canary chat -i x:2 -w ten", "--weight: must be an integer", 2),
    ("canary chat -i x:2 -r 0", "--replicas: Canary replicas must be a positive integer", 2),
    ("promote chat", "--yes: is needed", 2),
    ("rollback chat", "--yes: is needed", 2),
    ("regions add chat", "<REGION>", 2),
    ("regions add chat US", "REGION: must be a region's name", 2),
    ("regions swap chat us-east-1", "swap", 2),
    ("canaries chat -i x:2", "canaries", 2),
];

#[test]
fn every_bad_command_line_names_its_flag_and_changes_nothing() {
    let house = House::with_chat();
    let before = house.rows();
    let mut wrong = Vec::new();
    for (arguments, named, code) in BAD {
        let arguments: Vec<&str> = std::iter::once("inference").chain(arguments.split_whitespace()).collect();
        let ran = house.run(&arguments);
        let good = ran.code == code
            && ran.stdout.is_empty()
            && ran.stderr.starts_with("✗ ")
            && ran.stderr.contains(named)
            && house.rows() == before;
        if !good {
            wrong.push(format!("{arguments:?}: expected {named:?} and {code}, got {ran:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_bad_environment_is_named_by_its_variable() {
    let house = House::with_chat();
    let deploy = &["inference", "deploy", "talk", "-i", "x:1", "-r", "us-east-1"][..];
    for (arguments, variable, value, named) in [
        (&["inference", "list"][..], "GCO_OUTPUT_FORMAT", "xml", "✗ GCO_OUTPUT_FORMAT: must be "),
        (&["inference", "list"][..], "GCO_TABLE", "mysql", "✗ GCO_TABLE: must be dynamodb or embedded:PATH"),
        (&["inference", "list"][..], "GCO_LOCAL", "maybe", "✗ GCO_LOCAL: must be true, false or a folder"),
        (&["inference", "status", "chat"][..], "GCO_WATCH_INTERVAL_SECONDS", "never", "GCO_WATCH_INTERVAL_SECONDS: "),
        (deploy, "GCO_REGIONS", "us-east-1,Europe", "✗ GCO_REGIONS: must be a region's name"),
        (
            deploy,
            "GCO_REGIONS",
            "eu-west-1",
            "✗ --region: 'us-east-1' is none of the regions of GCO_REGIONS: eu-west-1",
        ),
    ] {
        let mut command = house.command(arguments);
        command.env(variable, value);
        run(command).code(2).complains(&[named]);
    }
    assert!(house.row("talk").is_none());
}

#[test]
fn no_message_repeats_the_value_of_an_environment_variable() {
    let house = House::with_chat();
    let start = ["inference", "deploy", "talk", "-i", "x:1", "-r", "us-east-1"];
    for (rest, named) in [
        (&["-e", "hunter2"][..], "--env (number 1)"),
        (&["-e", "=hunter2"][..], "--env (number 1)"),
        (&["-e", "BÄD=hunter2"][..], "--env BÄD: "),
        (&["-e", "A=hunter2", "-e", "A=hunter2"][..], "--env (number 2)"),
        (&["-e", "TOKEN=", "hunter2"][..], "argument number 10 is unexpected"),
        (&["--evn=TOKEN=hunter2"][..], "--evn"),
        (&["--evn", "TOKEN=hunter2"][..], "--evn"),
    ] {
        let ran = house.run(&[&start[..], rest].concat()).code(2).complains(&[named]);
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    }
    let big = format!("TOKEN=hunter2{}", "x".repeat(100_000));
    let bigger = format!("OTHER=hunter2{}", "x".repeat(100_000));
    let ran = house.run(&[&start[..], &["-e", &big, "-e", &bigger]].concat()).code(2).complains(&["--env: "]);
    assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
}

/// The verbs that `gco inference --help` lists.
fn verbs(help: &str) -> BTreeSet<&str> {
    let rows = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    rows.filter_map(|row| row.split_whitespace().next()).collect()
}

#[test]
fn the_readme_names_every_verb_and_no_other() {
    let ran = House::new().run(&["inference", "--help"]).code(0);
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let rows = readme.lines().skip_while(|line| !line.starts_with("| Verb of ")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|')).filter_map(|row| row.split('|').nth(1));
    let named = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let named: BTreeSet<&str> = named.filter_map(|verb| verb.split(' ').next()).collect();
    assert_eq!(named, verbs(&ran.stdout));
}

#[test]
fn help_has_examples_and_goes_to_standard_output() {
    let house = House::new();
    let help = house.run(&["inference", "--help"]).code(0).stdout;
    let verbs = verbs(&help).into_iter().filter(|verb| *verb != "regions").map(|verb| vec![verb]);
    for verb in verbs.chain([vec!["regions", "add"], vec!["regions", "remove"]]) {
        let ran = house.run(&[&["inference"], &verb[..], &["--help"]].concat()).code(0).says(&[
            "Examples:",
            "gco inference",
            "--output",
        ]);
        assert!(ran.stderr.is_empty(), "{}", ran.stderr);
    }
    house.run(&["--help"]).code(0).says(&["Exit codes:", "inference", "local"]);
    house.run(&["inference", "--help"]).code(0).says(&["INFERENCE_ENDPOINTS_TABLE_NAME", "embedded:PATH"]);
    house.run(&["--version"]).code(0).says(&["gco "]);
    assert!(house.run(&["inference"]).code(2).stdout.is_empty());
}
