#!/usr/bin/env bash
# Builds what is needed and runs regions on this machine, with a sample endpoint that answers from each of them.
#
#   infra/local/run.sh                      two regions, until Ctrl-C
#   infra/local/run.sh --then-stop          the same, and stops once the sample has answered
#   infra/local/run.sh --region us-west-2   other regions (repeat)
#
# Everything else goes to `gco local up`. The first run builds the Kubernetes control plane from Go modules (5 to 15 minutes
# on two cores) and keeps it in ${XDG_CACHE_HOME:-$HOME/.cache}/gco-bed; set GCO_BED_BINARIES to a folder that already holds
# the four programs instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

needs() { command -v "$1" >/dev/null 2>&1 || { echo "infra/local/run.sh: '$1' is not on PATH; $2" >&2; exit 2; }; }
needs cargo "install Rust with rustup"
if [ -z "${GCO_BED_BINARIES:-}" ]; then
  needs go "install Go 1.25 or newer: the control plane is built from its modules"
fi

echo "building gco, gco-local, gco-engine, gco-proxy and gco-monitor (about 5 minutes the first time on two cores)" >&2
cargo build --locked -p gco -p gco-local -p gco-proxy -p gco-monitor --features gco-monitor/embedded-table

target="$(cargo metadata --locked --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')"
exec "$target/debug/gco-local" up --sample "$@"
