#!/usr/bin/env bash
# Builds what a local region needs and starts it: `infra/local/run.sh` is `gco local up --sample` on a fresh machine.
#
#   infra/local/run.sh [arguments of `gco local up`]
#
# Needs: cargo (Rust 1.94.1 or newer), go 1.25 or newer, a C compiler. The first run builds the Kubernetes control plane
# from Go modules (5 to 12 minutes on two cores) and keeps it in ${XDG_CACHE_HOME:-$HOME/.cache}/gco-bed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

for program in cargo go cc; do
  command -v "$program" >/dev/null 2>&1 || { echo "infra/local/run.sh: '$program' is not on PATH" >&2; exit 2; }
done

echo "== Building gco, gco-local, gco-engine and gco-monitor (about 4 minutes the first time on two cores)" >&2
cargo build --locked -p gco -p gco-local -p gco-monitor --features gco-monitor/embedded-table
target="${CARGO_TARGET_DIR:-target}/debug"

if [ "$#" -eq 0 ]; then set -- --sample; fi
exec "$target/gco" local up "$@"
