//! The command line: verbs, flags and their help.
//!
//! Values stay text here. The verbs check them, all at once, so that a person mends a command line once and not once
//! per mistake, and so that no message repeats a value that may be a secret.

use clap::{Args, Parser, Subcommand};

/// Drive model servers in many regions.
#[derive(Debug, Parser)]
#[command(name = "gco", version, after_help = EXIT_CODES, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct CommandLine {
    /// Flags that every verb has.
    #[command(flatten)]
    pub common: CommonFlags,
    /// What to drive.
    #[command(subcommand)]
    pub room: Room,
}

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    refused or failed; the message says why
  2    the command line is wrong; nothing was read or written
  3    waited, and the time ran out
  130  interrupted while waiting";

/// The two things that `gco` drives.
#[derive(Debug, Subcommand)]
pub enum Room {
    /// Deploy, look at and change inference endpoints
    #[command(after_help = INFERENCE_HELP, arg_required_else_help = true, disable_help_subcommand = true)]
    Inference {
        /// What to do.
        #[command(subcommand)]
        verb: Verb,
    },
    /// Run regions on this machine (everything after `local` goes to gco-local)
    #[command(disable_help_flag = true)]
    Local {
        /// Arguments of gco-local.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<std::ffi::OsString>,
    },
}

const INFERENCE_HELP: &str = "\
Examples:
  gco inference deploy chat -i vllm/vllm-openai:v0.28.0 -r us-east-1 -r eu-west-1 --gpu-count 8 --wait
  gco inference status chat --watch
  gco inference scale chat --replicas 4
  gco inference list -o json

Which table:
  --table dynamodb         INFERENCE_ENDPOINTS_TABLE_NAME (gco-inference-endpoints) in DYNAMODB_REGION,
                           else GCO_GLOBAL_REGION, else us-east-2; DYNAMODB_ENDPOINT_URL for a local server
  --table embedded:PATH    a file on this machine
  --local                  the table of the running `gco local`
  Without a flag: GCO_LOCAL, then GCO_TABLE, then dynamodb.";

/// Flags that every verb has.
#[derive(Clone, Debug, Default, Args)]
pub struct CommonFlags {
    /// Output format: table, json or yaml [default: GCO_OUTPUT_FORMAT, else table]
    #[arg(short = 'o', long, value_name = "FORMAT", global = true, help_heading = "Common options")]
    pub output: Option<String>,
    /// Where the endpoints are kept: dynamodb or embedded:PATH [default: GCO_TABLE, else dynamodb]
    #[arg(long, value_name = "TABLE", global = true, help_heading = "Common options")]
    pub table: Option<String>,
    /// Use the table of the `gco local` that runs on this machine [default: GCO_LOCAL]
    #[arg(long, global = true, help_heading = "Common options")]
    pub local: bool,
}

/// Verbs of `gco inference`.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Create an endpoint
    #[command(after_help = DEPLOY_HELP)]
    Deploy(Box<DeployFlags>),
    /// Show all endpoints, newest first
    #[command(after_help = LIST_HELP)]
    List(ListFlags),
    /// Show one endpoint: what is asked for and what each region says
    #[command(after_help = STATUS_HELP)]
    Status(StatusFlags),
    /// Show what a region's monitor would change now, and why
    #[command(after_help = PLAN_HELP)]
    Plan(PlanFlags),
    /// Say in words what the regions report, and what to do next
    #[command(after_help = EXPLAIN_HELP)]
    Explain(NameFlags),
    /// Change the number of replicas in every region
    #[command(after_help = SCALE_HELP)]
    Scale(ScaleFlags),
    /// Let the regions choose the number of replicas within bounds, or end that
    #[command(after_help = AUTOSCALE_HELP)]
    Autoscale(AutoscaleFlags),
    /// Change the image; regions roll it out while the old one serves
    #[command(after_help = UPDATE_IMAGE_HELP)]
    UpdateImage(UpdateImageFlags),
    /// Change single fields of what runs
    #[command(after_help = SET_HELP)]
    Set(Box<SetFlags>),
    /// Edit the whole spec, in an editor or from a file
    #[command(after_help = EDIT_HELP)]
    Edit(EditFlags),
    /// Bring back the spec before the last edit
    #[command(after_help = UNDO_HELP)]
    Undo(NameFlags),
    /// Send a share of the requests to pods of another image
    #[command(after_help = CANARY_HELP)]
    Canary(CanaryFlags),
    /// Make the canary's image the endpoint's, and end the canary
    #[command(after_help = PROMOTE_HELP)]
    Promote(ConfirmedFlags),
    /// End the canary; the endpoint stays as it is
    #[command(after_help = ROLLBACK_HELP)]
    Rollback(ConfirmedFlags),
    /// Add or remove a region
    #[command(arg_required_else_help = true, disable_help_subcommand = true)]
    Regions {
        /// What to do.
        #[command(subcommand)]
        change: RegionChange,
    },
    /// Keep the endpoint without pods, until it is started again
    #[command(after_help = STOP_HELP)]
    Stop(ConfirmedFlags),
    /// Start a stopped endpoint
    #[command(after_help = START_HELP)]
    Start(NameFlags),
    /// Remove an endpoint from all its regions
    #[command(after_help = DELETE_HELP)]
    Delete(DeleteFlags),
    /// Show objects that no endpoint owns any more; nothing removes them by itself
    #[command(after_help = ORPHANS_HELP)]
    Orphans(OrphansFlags),
    /// Make the regions change nothing for an endpoint, while they go on reporting
    #[command(after_help = PAUSE_HELP)]
    Pause(NameFlags),
    /// Replace pods of an older rendering by current ones, a few endpoints at once
    #[command(after_help = REFRESH_HELP)]
    Refresh(RefreshFlags),
    /// End a pause
    #[command(after_help = RESUME_HELP)]
    Resume(NameFlags),
    /// Make one region change nothing for any endpoint, while it goes on reporting
    #[command(after_help = FREEZE_HELP)]
    Freeze(RegionFlags),
    /// End a region's freeze
    #[command(after_help = UNFREEZE_HELP)]
    Unfreeze(RegionFlags),
    /// Look at what the fleet's tables are made of, or make what is missing
    #[command(after_help = SETUP_HELP)]
    Setup(SetupFlags),
}

/// What `regions` does.
#[derive(Debug, Subcommand)]
pub enum RegionChange {
    /// Serve the endpoint in one more region
    #[command(after_help = REGIONS_ADD_HELP)]
    Add(EndpointRegionFlags),
    /// Serve the endpoint in one region less: everything of it is removed there
    #[command(after_help = REGIONS_REMOVE_HELP)]
    Remove(ConfirmedRegionFlags),
}

const CANARY_HELP: &str = "\
Examples:
  gco inference canary chat -i vllm/vllm-openai:v0.29.0
  gco inference canary chat -i vllm/vllm-openai:v0.29.0 --weight 25 --replicas 2

In each region the canary gets its share once all its pods are ready, and none while they are not. It uses the endpoint's
own model directory, environment and arguments. Run it again to change image, weight or count.";

const PROMOTE_HELP: &str = "\
Examples:
  gco inference promote chat
  gco inference promote chat -y

The endpoint's own pods are replaced by pods of the canary's image, as with update-image; the canary goes after the first of
them serves. Images by region are dropped.";

const ROLLBACK_HELP: &str = "\
Examples:
  gco inference rollback chat -y";

const REGIONS_ADD_HELP: &str = "\
Examples:
  gco inference regions add chat eu-west-1
  gco inference status chat --watch --until running";

const REGIONS_REMOVE_HELP: &str = "\
Examples:
  gco inference regions remove chat eu-west-1 -y

The region's monitor removes everything of the endpoint there and confirms it twice; the other regions go on serving.";

const ORPHANS_HELP: &str = "\
Examples:
  gco inference orphans
  gco inference orphans -r eu-west-1 -o json

Each region's monitor tells of them with its heartbeat, once a minute: objects with our labels whose endpoint is gone from
the table, for example after a region that was declared gone came back. To remove one that is of no use any more:
  kubectl --context REGION -n gco-inference delete deployment/NAME";

const DEPLOY_HELP: &str = "\
Examples:
  gco inference deploy chat -i vllm/vllm-openai:v0.28.0 -r us-east-1
  gco inference deploy chat -i vllm/vllm-openai:v0.28.0 -r us-east-1 -r eu-west-1 \\
      --replicas 2 --gpu-count 8 --extra-args --tensor-parallel-size --extra-args 8 \\
      -e MODEL=/models/chat --model-source s3://models/chat --wait --timeout-seconds 1800
  gco inference deploy chat -i vllm/vllm-openai:v0.28.0 -r us-east-1 \\
      --autoscale-metric cpu:70 --min-replicas 2 --max-replicas 8
  gco inference deploy chat -i my-server:1 -r us-east-1 --gpu-count 0 \\
      --request cpu=2 --limit memory=8Gi --dry-run -o json

Without -r the endpoint goes to all known regions: those of the running `gco local` when its table is used, else
GCO_REGIONS (a list with commas), else the regions whose monitor reports to the table.";

const LIST_HELP: &str = "\
Examples:
  gco inference list
  gco inference list -s running -r eu-west-1
  gco inference list -o json";

const STATUS_HELP: &str = "\
Examples:
  gco inference status chat
  gco inference status chat --watch
  gco inference status chat --watch --until running --timeout-seconds 900
  gco inference status chat -o yaml

--watch prints again whenever something changed (one JSON document per line with -o json). --until ends it once the
state is reached everywhere: running (every region serves), stopped (no region has pods) or deleted (the row is gone).
It exits with 3 when the time runs out, and with 1 when a region says that it cannot serve the endpoint as it is.";

const PLAN_HELP: &str = "\
Examples:
  gco inference plan chat --region us-east-1 --context us-east-1-admin
  gco inference plan --all --region us-east-1 -o json
  gco inference --local plan --all

The table is read, and the cluster with your own kubeconfig: it needs list and watch on deployments, services, replica sets,
pods, horizontal pod autoscalers and, where KEDA is, scaled objects of the endpoints' namespace. Nothing is changed. Steps that replace pods are marked. With a running monitor the plan is
empty, or what it is about to do; before one is installed it is what it will do first.";

const EXPLAIN_HELP: &str = "\
Examples:
  gco inference explain chat
  gco inference explain chat -o json

Every error code has a section in docs/errors.md.";

const SCALE_HELP: &str = "\
Examples:
  gco inference scale chat --replicas 4";

const AUTOSCALE_HELP: &str = "\
Examples:
  gco inference autoscale chat --min-replicas 2 --max-replicas 8 --metric cpu:70
  gco inference autoscale chat --metric gpu:60 --metric gpu_memory:80
  gco inference autoscale chat --max-replicas 20
  gco inference autoscale chat --off
  gco inference autoscale chat --off --replicas 4

Metrics: cpu and memory are measured by Kubernetes, as a percentage of what pods request; gpu and gpu_memory need KEDA in
the region's cluster, and then it looks at all metrics. --metric replaces all metrics; what is not given stays as it is.
--off without --replicas keeps as many replicas as the region with the most has now.";

const UPDATE_IMAGE_HELP: &str = "\
Examples:
  gco inference update-image chat -i vllm/vllm-openai:v0.28.1

Images by region (made by deploy from an ECR image) are dropped: every region pulls the image given here.";

const SET_HELP: &str = "\
Examples:
  gco inference set chat -e MAX_LEN=8192 --unset-env DEBUG
  gco inference set chat --request cpu=4 --limit memory=64Gi
  gco inference set chat --env-from-secret HF_TOKEN=hugging-face/token --image-pull-secret registry
  gco inference set chat --node-selector topology.kubernetes.io/zone=us-east-1a --dry-run -o yaml

Variables, resources and node labels are merged into what is there; arguments, the command and pull secrets replace it. An
empty text (--capacity-type '') takes a field away. What is changed is written in one edit, or not at all.";

const EDIT_HELP: &str = "\
Examples:
  gco inference edit chat
  gco inference edit chat --file spec.yaml
  gco inference status chat -o json | jq .spec | gco inference edit chat --file - --dry-run

The editor is GCO_EDITOR, VISUAL or EDITOR. Only the fields that you changed are written, so that an edit of another field
by somebody else meanwhile stays.";

const UNDO_HELP: &str = "\
Examples:
  gco inference undo chat

The replica count stays as it is. Undoing twice is doing the edit again. An edit by the earlier control plane's command line
cannot be undone.";

const STOP_HELP: &str = "\
Examples:
  gco inference stop chat -y";

const START_HELP: &str = "\
Examples:
  gco inference start chat";

const DELETE_HELP: &str = "\
Examples:
  gco inference delete chat -y
  gco inference status chat --watch --until deleted
  gco inference delete chat --force-region-absent eu-west-1 --reason 'cluster decommissioned, ticket 4711'

The name is free again once every region has confirmed twice that nothing is left. A region that was taken out of service
cannot confirm; --force-region-absent is your word that it is gone for good. It is kept on the row with your name and reason.
Should its cluster come back, what is left there goes on running until somebody removes it; `gco inference orphans` lists it.";

const PAUSE_HELP: &str = "\
Examples:
  gco inference pause chat

Pods go on serving. Edits are stored, but no region acts on them before `gco inference resume chat`.";

const REFRESH_HELP: &str = "\
Examples:
  gco inference refresh chat
  gco inference refresh --all --at-once 2 -y
  gco inference refresh --clear -r us-east-1

An upgrade, and taking over the endpoints of the earlier control plane, leave running pods as they are; this replaces them.
Each region restarts at most UNASKED_RESTARTS_AT_ONCE endpoints at once (5), or --at-once if that is fewer, and begins no
further one after UNASKED_RESTARTS_FAILURES (3) that do not come up. --clear says that somebody has looked at those.";

const RESUME_HELP: &str = "\
Examples:
  gco inference resume chat";

const FREEZE_HELP: &str = "\
Examples:
  gco inference freeze eu-west-1

Pods go on serving, and the region goes on reporting. Edits, deletions and repairs wait there for `gco inference unfreeze`.";

const UNFREEZE_HELP: &str = "\
Examples:
  gco inference unfreeze eu-west-1";

const SETUP_HELP: &str = "\
Examples:
  gco inference setup --check
  gco inference setup --apply
  gco inference setup --apply --create-table

The parts are the endpoint table, the regions' table (heartbeats, freeze switch) and the change index (edits are heard of
within a second instead of 15). --apply makes the last two when they are missing; it never reads or writes a row, and doing
it twice is doing it once. --check exits with 1 when something is missing.";

/// Flags of `freeze` and `unfreeze`.
#[derive(Clone, Debug, Default, Args)]
pub struct RegionFlags {
    /// The region, for example us-east-1
    pub region: String,
}

/// Flags of `setup`.
#[derive(Clone, Debug, Default, Args)]
pub struct SetupFlags {
    /// Say what is there; change nothing
    #[arg(long)]
    pub check: bool,
    /// Make the regions' table and the change index when they are missing
    #[arg(long)]
    pub apply: bool,
    /// With --apply: make the endpoint table, too, when it is missing
    #[arg(long)]
    pub create_table: bool,
}

/// Flags of `deploy`.
#[derive(Clone, Debug, Default, Args)]
pub struct DeployFlags {
    /// Name of the endpoint: lower-case letters, digits and hyphens, starting with a letter
    pub endpoint_name: String,
    /// Container image of the model server
    #[arg(short, long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// Region to serve in (repeat) [default: all known regions]
    #[arg(short, long = "region", value_name = "REGION", allow_hyphen_values = true)]
    pub regions: Vec<String>,
    /// Replicas in each region [default: 1]
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub replicas: Option<String>,
    /// Accelerators of each replica [default: 1]
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub gpu_count: Option<String>,
    /// Instance type hint; stored, but nothing reads it (use --node-selector)
    #[arg(long, value_name = "TYPE")]
    pub gpu_type: Option<String>,
    /// Port of the model server [default: 8000]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    pub port: Option<String>,
    /// Mount the shared model storage at /models
    #[arg(long, value_name = "PATH")]
    pub model_path: Option<String>,
    /// Where the model comes from; an s3:// address is synchronised before the start
    #[arg(long, value_name = "ADDRESS")]
    pub model_source: Option<String>,
    /// Path of the health check [default: /health]
    #[arg(long, value_name = "PATH")]
    pub health_path: Option<String>,
    /// Environment variable of the model server (repeat)
    #[arg(short, long, value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub env: Vec<String>,
    /// Variable whose value is a key of a Secret in the endpoints' namespace (repeat)
    #[arg(long, value_name = "VARIABLE=SECRET/KEY", allow_hyphen_values = true)]
    pub env_from_secret: Vec<String>,
    /// Secret with a registry's credentials, in the endpoints' namespace (repeat)
    #[arg(long = "image-pull-secret", value_name = "SECRET")]
    pub image_pull_secrets: Vec<String>,
    /// Kubernetes namespace; only gco-inference works
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Label of the endpoint (repeat)
    #[arg(short, long = "label", value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub labels: Vec<String>,
    /// Kind of capacity: on-demand or spot
    #[arg(long, value_name = "TYPE")]
    pub capacity_type: Option<String>,
    /// One argument of the model server (repeat, in order)
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub extra_args: Vec<String>,
    /// One word of the command that replaces the image's entry point (repeat, in order)
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// Accelerator family: nvidia or neuron [default: nvidia]
    #[arg(long, value_name = "FAMILY")]
    pub accelerator: Option<String>,
    /// Model server in the image: vllm or tgi [default: told from the image name]
    #[arg(long, value_name = "FRAMEWORK")]
    pub framework: Option<String>,
    /// Node label that the pods need (repeat)
    #[arg(long = "node-selector", value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub node_selectors: Vec<String>,
    /// Resource that each pod asks for (repeat), for example cpu=2
    #[arg(long = "request", value_name = "NAME=QUANTITY", allow_hyphen_values = true)]
    pub requests: Vec<String>,
    /// Resource that each pod may use at most (repeat), for example memory=32Gi
    #[arg(long = "limit", value_name = "NAME=QUANTITY", allow_hyphen_values = true)]
    pub limits: Vec<String>,
    /// How long a start may take before the pod counts as failed, 30 to 21600 [default: 1800]
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub startup_timeout_seconds: Option<String>,
    /// How long a pod that is being replaced finishes open requests, 0 to 3600 [default: 60]
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub drain_seconds: Option<String>,
    /// Pods above the replica count during a rollout, 0 to 100 [default: 0]
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub max_surge: Option<String>,
    /// Let each region choose the number of replicas by this metric: cpu, memory, gpu or gpu_memory, with a target in
    /// percent (repeat) [target: 70]
    #[arg(long = "autoscale-metric", value_name = "TYPE[:TARGET]", allow_hyphen_values = true)]
    pub autoscale_metrics: Vec<String>,
    /// With --autoscale-metric: fewest replicas in each region [default: 1]
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub min_replicas: Option<String>,
    /// With --autoscale-metric: most replicas in each region [default: 10]
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub max_replicas: Option<String>,
    /// Keep an ECR image as it is, instead of pulling from each region's own registry
    #[arg(long)]
    pub no_rewrite_image: bool,
    /// Wait until every region serves
    #[arg(long)]
    pub wait: bool,
    /// With --wait: how long at most [default: 1800]
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub timeout_seconds: Option<String>,
    /// Print the row that would be written, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Flags of `list`.
#[derive(Clone, Debug, Default, Args)]
pub struct ListFlags {
    /// Only endpoints in this state: deploying, running, stopped or deleted
    #[arg(short, long, value_name = "STATE")]
    pub state: Option<String>,
    /// Only endpoints that target this region
    #[arg(short, long, value_name = "REGION")]
    pub region: Option<String>,
}

/// Flags of `status`.
#[derive(Clone, Debug, Default, Args)]
pub struct StatusFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// Print again on every change, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
    /// With --watch: end when everything is running, stopped or deleted
    #[arg(long, value_name = "STATE")]
    pub until: Option<String>,
    /// With --until: how long at most [default: 1800]
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub timeout_seconds: Option<String>,
}

/// Flags of `plan`.
#[derive(Clone, Debug, Default, Args)]
pub struct PlanFlags {
    /// Name of the endpoint
    pub endpoint_name: Option<String>,
    /// Every endpoint of the region
    #[arg(long)]
    pub all: bool,
    /// The region that the cluster belongs to [default: every region of the running `gco local`]
    #[arg(short, long, value_name = "REGION")]
    pub region: Option<String>,
    /// Kubeconfig file [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
    /// Name of the cluster, as the region's monitor has it (`CLUSTER_NAME`); only autoscaling by GPU metrics needs it
    #[arg(long, value_name = "NAME", default_value = "unknown-cluster")]
    pub cluster_name: String,
}

/// Flags of `scale`.
#[derive(Clone, Debug, Default, Args)]
pub struct ScaleFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// Replicas in each region, 1 to 1000
    #[arg(short, long, value_name = "COUNT", required = true, allow_hyphen_values = true)]
    pub replicas: String,
}

/// Flags of `autoscale`.
#[derive(Clone, Debug, Default, Args)]
pub struct AutoscaleFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// Fewest replicas in each region, 1 to 1000 [default: as it is, else 1]
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub min_replicas: Option<String>,
    /// Most replicas in each region, 1 to 1000 [default: as it is, else 10]
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub max_replicas: Option<String>,
    /// cpu, memory, gpu or gpu_memory, with a target in percent (repeat) [default: as it is, else cpu:70]
    #[arg(long = "metric", value_name = "TYPE[:TARGET]", allow_hyphen_values = true)]
    pub metrics: Vec<String>,
    /// End it: the number of replicas is fixed again
    #[arg(long)]
    pub off: bool,
    /// With --off: replicas in each region [default: what the region with the most has now]
    #[arg(short, long, value_name = "COUNT", allow_hyphen_values = true)]
    pub replicas: Option<String>,
}

/// Flags of `update-image`.
#[derive(Clone, Debug, Default, Args)]
pub struct UpdateImageFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// The new image
    #[arg(short, long, value_name = "IMAGE", required = true)]
    pub image: String,
}

/// Flags of `set`.
#[derive(Clone, Debug, Default, Args)]
pub struct SetFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// Environment variable of the model server (repeat)
    #[arg(short, long, value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub env: Vec<String>,
    /// Variable whose value is a key of a Secret in the endpoints' namespace (repeat)
    #[arg(long, value_name = "VARIABLE=SECRET/KEY", allow_hyphen_values = true)]
    pub env_from_secret: Vec<String>,
    /// Variable to take away, plain or from a Secret (repeat)
    #[arg(long, value_name = "KEY")]
    pub unset_env: Vec<String>,
    /// One argument of the model server (repeat, in order); replaces all arguments
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub extra_args: Vec<String>,
    /// Take all arguments away
    #[arg(long)]
    pub clear_extra_args: bool,
    /// One word of the command that replaces the image's entry point (repeat, in order)
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// Use the image's entry point again
    #[arg(long)]
    pub clear_command: bool,
    /// Resource that each pod asks for (repeat), for example cpu=2
    #[arg(long = "request", value_name = "NAME=QUANTITY", allow_hyphen_values = true)]
    pub requests: Vec<String>,
    /// Resource that each pod may use at most (repeat), for example memory=32Gi
    #[arg(long = "limit", value_name = "NAME=QUANTITY", allow_hyphen_values = true)]
    pub limits: Vec<String>,
    /// Request to take away (repeat)
    #[arg(long = "unset-request", value_name = "NAME")]
    pub unset_requests: Vec<String>,
    /// Limit to take away (repeat)
    #[arg(long = "unset-limit", value_name = "NAME")]
    pub unset_limits: Vec<String>,
    /// Node label that the pods need (repeat)
    #[arg(long = "node-selector", value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub node_selectors: Vec<String>,
    /// Node label to take away (repeat)
    #[arg(long = "unset-node-selector", value_name = "KEY")]
    pub unset_node_selectors: Vec<String>,
    /// Secret with a registry's credentials (repeat); replaces all of them
    #[arg(long = "image-pull-secret", value_name = "SECRET")]
    pub image_pull_secrets: Vec<String>,
    /// Take all pull secrets away
    #[arg(long)]
    pub clear_image_pull_secrets: bool,
    /// Port of the model server
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    pub port: Option<String>,
    /// Accelerators of each replica
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub gpu_count: Option<String>,
    /// Path of the health check
    #[arg(long, value_name = "PATH")]
    pub health_path: Option<String>,
    /// Where the model comes from
    #[arg(long, value_name = "ADDRESS")]
    pub model_source: Option<String>,
    /// Kind of capacity: on-demand or spot
    #[arg(long, value_name = "TYPE")]
    pub capacity_type: Option<String>,
    /// Accelerator family: nvidia or neuron
    #[arg(long, value_name = "FAMILY")]
    pub accelerator: Option<String>,
    /// Model server in the image: vllm or tgi
    #[arg(long, value_name = "FRAMEWORK")]
    pub framework: Option<String>,
    /// How long a start may take before the pod counts as failed, 30 to 21600
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub startup_timeout_seconds: Option<String>,
    /// How long a pod that is being replaced finishes open requests, 0 to 3600
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub drain_seconds: Option<String>,
    /// Pods above the replica count during a rollout, 0 to 100
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub max_surge: Option<String>,
    /// Say what would change, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Flags of `edit`.
#[derive(Clone, Debug, Default, Args)]
pub struct EditFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// Take the spec from this YAML or JSON file (`-`: standard input) instead of an editor
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<String>,
    /// Say what would change, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Flags of `refresh`.
#[derive(Clone, Debug, Default, Args)]
pub struct RefreshFlags {
    /// Name of the endpoint
    pub endpoint_name: Option<String>,
    /// Every endpoint
    #[arg(long)]
    pub all: bool,
    /// Endpoints of a region that are restarted at once, at most; a region's own limit counts if it is lower
    #[arg(long, value_name = "COUNT", allow_hyphen_values = true)]
    pub at_once: Option<String>,
    /// Let restarts go on that stopped because some had failed
    #[arg(long)]
    pub clear: bool,
    /// With --clear: in this region (repeat) [default: all regions that report]
    #[arg(short, long = "region", value_name = "REGION", allow_hyphen_values = true)]
    pub regions: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// Flags of `orphans`.
#[derive(Clone, Debug, Default, Args)]
pub struct OrphansFlags {
    /// Only this region
    #[arg(short, long, value_name = "REGION")]
    pub region: Option<String>,
}

/// Flags of `canary`.
#[derive(Clone, Debug, Default, Args)]
pub struct CanaryFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// Image of the canary
    #[arg(short, long, value_name = "IMAGE", required = true)]
    pub image: String,
    /// Share of the requests in percent, 1 to 99 [default: 10]
    #[arg(short, long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub weight: Option<String>,
    /// Replicas of the canary in each region [default: 1]
    #[arg(short, long, value_name = "COUNT", allow_hyphen_values = true)]
    pub replicas: Option<String>,
}

/// Flags of `regions add`.
#[derive(Clone, Debug, Default, Args)]
pub struct EndpointRegionFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// Name of the region
    pub region: String,
}

/// Flags of `regions remove`.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfirmedRegionFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// Name of the region
    pub region: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// Flags of `delete`.
#[derive(Clone, Debug, Default, Args)]
pub struct DeleteFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// A region that is gone for good and will never confirm (repeat)
    #[arg(long, value_name = "REGION", allow_hyphen_values = true)]
    pub force_region_absent: Vec<String>,
    /// With --force-region-absent: how you know that it is gone; kept on the row
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// With --force-region-absent: who says so; kept on the row [default: GCO_OPERATOR, else USER]
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
}

/// Flags of a verb that takes only a name.
#[derive(Clone, Debug, Default, Args)]
pub struct NameFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
}

/// Flags of a verb that asks before it acts.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfirmedFlags {
    /// Name of the endpoint
    pub endpoint_name: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}
