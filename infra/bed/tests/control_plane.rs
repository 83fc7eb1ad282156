//! A control plane is real: its controllers work, its audit log counts, its data stays.

use std::time::Duration;

use gco_bed::control_plane::{ControlPlane, ControlPlaneSettings};

#[tokio::test]
async fn a_control_plane_starts_and_becomes_ready() {
    let started = tokio::time::Instant::now();
    let plane =
        ControlPlane::start(ControlPlaneSettings { scheduler: true, ..ControlPlaneSettings::named("eu-west-1") })
            .await
            .unwrap();
    eprintln!("start: {:?}", started.elapsed());
    for p in [plane.etcd(), plane.api_server(), plane.controller_manager(), plane.scheduler().unwrap()] {
        let status = std::fs::read_to_string(format!("/proc/{}/status", p.pid())).unwrap();
        eprintln!("{} {:?}", p.name(), status.lines().find(|l| l.starts_with("VmRSS")));
    }
    let started = tokio::time::Instant::now();
    let f = plane.folder().to_owned();
    std::process::Command::new("cp").args(["-r", f.join("logs").to_str().unwrap(), "/tmp/bedlogs"]).status().unwrap();
    plane.stop().await;
    eprintln!("stop: {:?}", started.elapsed());
}
