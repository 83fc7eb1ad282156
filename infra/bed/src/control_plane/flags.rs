//! The flags of each program.

use std::path::Path;

use super::credentials::Credentials;
use super::{ControlPlaneSettings, Layout, Ports};
use crate::binaries::Binaries;
use crate::process::ProcessSettings;

/// Controllers that need a cloud, or would fight over nodes that a stand-in keeps alive.
const CONTROLLERS: &str = "*,-node-ipam-controller,-node-lifecycle-controller,-node-route-controller,\
                           -service-lb-controller,-cloud-node-lifecycle-controller";

/// Clients that are asked to be quick: the defaults would make one test wait for another's objects.
const CLIENT_RATES: [&str; 2] = ["--kube-api-qps=1000", "--kube-api-burst=2000"];

pub(super) fn etcd(binaries: &Binaries, layout: &Layout, ports: Ports) -> ProcessSettings {
    let client = format!("http://127.0.0.1:{}", ports.etcd_client);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    ProcessSettings::new(&binaries.etcd, layout.log("etcd"))
        .argument("--name=bed")
        .argument(flag("--data-dir", &layout.folder.join("etcd")))
        .argument(format!("--listen-client-urls={client}"))
        .argument(format!("--advertise-client-urls={client}"))
        .argument(format!("--listen-peer-urls={peer}"))
        .argument(format!("--initial-advertise-peer-urls={peer}"))
        .argument(format!("--initial-cluster=bed={peer}"))
        // The page cache survives the end of the process, and nothing here has to survive the machine's.
        .argument("--unsafe-no-fsync")
        .argument("--log-level=warn")
}

pub(super) fn api_server(
    binaries: &Binaries,
    layout: &Layout,
    ports: Ports,
    credentials: &Credentials,
    settings: &ControlPlaneSettings,
    name: &str,
) -> ProcessSettings {
    let mut process = ProcessSettings::new(&binaries.kube_apiserver, layout.log(name))
        .argument(format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd_client))
        .argument("--bind-address=127.0.0.1")
        .argument(format!("--secure-port={}", ports.api_server))
        // Of the documentation range: an address is needed on machines without a network, nobody dials it.
        .argument("--advertise-address=192.0.2.1")
        .argument("--endpoint-reconciler-type=none")
        .argument(flag("--cert-dir", &layout.certificates()))
        .argument(flag("--service-account-key-file", &credentials.service_account_public_key))
        .argument(flag("--service-account-signing-key-file", &credentials.service_account_key))
        .argument("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        .argument(flag("--token-auth-file", &credentials.token_file))
        .argument("--authorization-mode=RBAC")
        .argument("--service-cluster-ip-range=10.96.0.0/16")
        .argument("--allow-privileged=true")
        .argument("--max-requests-inflight=4000")
        .argument("--max-mutating-requests-inflight=2000")
        .argument("--shutdown-delay-duration=0s");
    if settings.audit {
        process = process
            .argument(flag("--audit-policy-file", &layout.audit_policy()))
            .argument(flag("--audit-log-path", &layout.audit_log(name)))
            .argument("--audit-log-mode=blocking")
            .argument("--audit-log-format=json")
            // In MiB: never rotated, so that marks stay good.
            .argument("--audit-log-maxsize=100000");
    }
    process.arguments(&settings.api_server_flags)
}

pub(super) fn controller_manager(
    binaries: &Binaries,
    layout: &Layout,
    credentials: &Credentials,
    settings: &ControlPlaneSettings,
) -> ProcessSettings {
    ProcessSettings::new(&binaries.kube_controller_manager, layout.log("kube-controller-manager"))
        .argument(flag("--kubeconfig", &layout.kubeconfig("controller-manager")))
        .argument(flag("--service-account-private-key-file", &credentials.service_account_key))
        .argument(flag("--root-ca-file", &layout.certificate_authority()))
        .argument("--use-service-account-credentials=true")
        .argument("--leader-elect=false")
        .argument("--secure-port=0")
        .argument(format!("--controllers={CONTROLLERS}"))
        .arguments(CLIENT_RATES)
        .arguments(&settings.controller_manager_flags)
}

pub(super) fn scheduler(binaries: &Binaries, layout: &Layout, settings: &ControlPlaneSettings) -> ProcessSettings {
    ProcessSettings::new(&binaries.kube_scheduler, layout.log("kube-scheduler"))
        .argument(flag("--kubeconfig", &layout.kubeconfig("scheduler")))
        .argument("--leader-elect=false")
        .argument("--secure-port=0")
        .arguments(CLIENT_RATES)
        .arguments(&settings.scheduler_flags)
}

fn flag(name: &str, path: &Path) -> std::ffi::OsString {
    let mut flag = std::ffi::OsString::from(name);
    flag.push("=");
    flag.push(path);
    flag
}
