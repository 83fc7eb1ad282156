#!/usr/bin/env bash
# Builds and runs every test of the project: crates' own tests, and the suites on real control planes and table servers.
#
#   tests/run.sh            small sizes (what continuous integration runs)
#   tests/run.sh --full     the sizes whose figures the release notes quote
#
# On a fresh machine it needs: cargo (Rust 1.94.1 or newer), go 1.25 or newer, python3 with venv, node with npm, a C compiler, make.
# The first run builds the Kubernetes control plane from Go modules (5 to 12 minutes on two cores) and keeps it in
# ${XDG_CACHE_HOME:-$HOME/.cache}/gco-bed; set GCO_BED_BINARIES to a folder that already holds the four programs instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export GCO_SUITE_SIZE=small
for argument in "$@"; do
  case "$argument" in
    --full) GCO_SUITE_SIZE=full ;;
    *) echo "tests/run.sh: unknown argument '$argument'; allowed: --full" >&2; exit 2 ;;
  esac
done

say() { printf '\n== %s (%s)\n' "$1" "$(date -u +%H:%M:%S)"; }
needs() { command -v "$1" >/dev/null 2>&1 || { echo "tests/run.sh: '$1' is not on PATH; $2" >&2; exit 2; }; }
needs cargo "install Rust with rustup"
needs go "install Go 1.25 or newer: the control plane is built from its modules"
needs python3 "install Python 3 with venv: one table server comes from PyPI"
needs npm "install Node.js with npm: one table server comes from the npm registry"

say "Building all crates and tests (about 5 minutes the first time on two cores)"
cargo build --locked --workspace --all-targets

say "Preparing the bed: control plane and table servers (5 to 12 minutes the first time, then seconds)"
cargo run --locked --quiet -p gco-bed --bin gco-bed -- prepare

say "Running all tests (suite size: $GCO_SUITE_SIZE)"
log="$(mktemp)"
# What monitors ask of API servers is noted here, and compared with their Role at the end.
GCO_RIGHTS_FOLDER="$(mktemp -d)"
export GCO_RIGHTS_FOLDER
trap 'rm -rf "$log" "$GCO_RIGHTS_FOLDER"' EXIT
status=0
# One test binary at a time; a suite bounds its own concurrency, since two cores carry everything.
cargo test --locked --workspace --no-fail-fast -- --test-threads "${GCO_TEST_THREADS:-2}" 2>&1 | tee "$log" || status=$?

say "Comparing the monitor's rights with what it used"
cargo run --locked --quiet -p gco-tests --bin compare-rights -- "$GCO_RIGHTS_FOLDER" || status=1

# cargo prints one line of counts per test binary; this adds them up.
awk -v status="$status" '
  /^test result:/ { for (i = 1; i <= NF; i++) { if ($(i + 1) ~ /^passed/) passed += $i; if ($(i + 1) ~ /^failed/) failed += $i; if ($(i + 1) ~ /^ignored/) skipped += $i } }
  END {
    if (passed + failed == 0) { print "no test ran"; exit 1 }
    printf "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped
  }' "$log"
exit "$status"
