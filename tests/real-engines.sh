#!/usr/bin/env bash
# The proxy in front of real engines: two vLLM servers on the CPU hand their KV over, with Mooncake over TCP, then with NIXL.
#
#   tests/real-engines.sh                     small: every check, few requests
#   tests/real-engines.sh full                the figures that docs/real-engines.md quotes
#   tests/real-engines.sh [full] nixl         one connector only
#   tests/real-engines.sh install             installs what it needs, and no more
#
# Needs x86-64 Linux, cargo (Rust 1.94.1 or newer), CPython 3.11 with venv (PYTHON names another one), gcc, readelf, 4 GB of memory
# and 4 GB of disk. libibverbs1 and libnuma1 are taken from the system; when they are missing and apt-get is there, they are
# unpacked into the cache (nothing is installed).
#
# What it installs is kept in ${XDG_CACHE_HOME:-$HOME/.cache}/gco-real-engines, one folder per state of the recipe (lock file and
# scripts): 1 GB of downloads and two to five minutes the first time, then nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

recipe="tests/real-engines"
say() { printf '\n== %s (%s)\n' "$1" "$(date -u +%H:%M:%S)"; }
fail() { echo "tests/real-engines.sh: $1" >&2; exit 2; }
needs() { command -v "$1" >/dev/null 2>&1 || fail "'$1' is not on PATH; $2"; }

arguments=()
installs_only=""
for argument in "$@"; do
  case "$argument" in
    small | full | mooncake | nixl) arguments+=("$argument") ;;
    install) installs_only=1 ;;
    *) fail "unknown argument '$argument'; allowed: small, full, mooncake, nixl, install" ;;
  esac
done

[ "$(uname -sm)" = "Linux x86_64" ] || fail "this is $(uname -sm); the engine's packages are locked for Linux x86_64"
needs cargo "install Rust with rustup"
needs gcc "install a C compiler: stand-ins for CUDA libraries are compiled"
needs readelf "install binutils: stand-ins for CUDA libraries are made from what torch asks for"
python="${PYTHON:-}"
for candidate in python3.11 python3; do
  if [ -z "$python" ] && "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    python="$candidate"
  fi
done
[ -n "$python" ] || fail "there is no CPython 3.11 with venv; install it, or name one with PYTHON=/path/to/python3.11"

key="$(cat "$recipe/requirements.lock" "$recipe/cuda_stand_ins.py" "$recipe/tiny_model.py" | sha256sum | cut -c1-16)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/gco-real-engines"
folder="$cache/$key"
mkdir -p "$folder/home" "$folder/libraries"
exec 9>"$folder/lock"
if ! flock -n 9; then
  say "Waiting for another run that uses $folder"
  flock 9
fi

# Every step leaves a mark, so that a run that was cut off goes on where it stopped.
if [ ! -e "$folder/environment.done" ]; then
  say "Installing vLLM for the CPU into $folder (1 GB of downloads, 3 GB on disk; two to five minutes)"
  rm -rf "$folder/environment"
  "$python" -m venv "$folder/environment"
  # With its dependencies, pip would add 2 GB of CUDA libraries: the lock file names everything.
  "$folder/environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-cache-dir \
    --requirement "$recipe/requirements.lock"
  say "Making stand-ins for the CUDA libraries that torch names"
  "$folder/environment/bin/python" "$recipe/cuda_stand_ins.py"
  touch "$folder/environment.done"
fi

unpacked="$folder/libraries/usr/lib/x86_64-linux-gnu:$folder/libraries/lib/x86_64-linux-gnu"
# Prints what the dynamic loader cannot find for the modules that engines load.
missing_libraries() {
  local packages
  packages="$("$folder/environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  local numa=""
  LD_LIBRARY_PATH="$unpacked" "$folder/environment/bin/python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || numa="libnuma.so.1"
  { LD_LIBRARY_PATH="$unpacked" ldd "$packages"/mooncake/engine*.so | awk '/not found/ { print $1 }'; echo "$numa"; } | grep . | sort -u | tr '\n' ' ' || true
}
missing="$(missing_libraries)"
if [ -n "$missing" ]; then
  say "Unpacking libraries that this machine lacks: $missing"
  needs apt-get "install libibverbs1 and libnuma1 with your system's package manager"
  needs dpkg "install libibverbs1 and libnuma1 with your system's package manager"
  (
    cd "$folder/libraries"
    apt-get download libibverbs1 libnl-3-200 libnl-route-3-200 libnuma1 ||
      { echo "tests/real-engines.sh: apt-get download failed; run 'apt-get update', or install libibverbs1 and libnuma1" >&2; exit 2; }
    for package in ./*.deb; do dpkg -x "$package" . && rm "$package"; done
  )
  missing="$(missing_libraries)"
  [ -z "$missing" ] || fail "still missing: $missing; install libibverbs1 and libnuma1"
fi

if [ ! -e "$folder/model.done" ]; then
  say "Making a model of 1.5 MB with random weights"
  rm -rf "$folder/model"
  mkdir -p "$folder/model"
  HF_HUB_OFFLINE=1 "$folder/environment/bin/python" "$recipe/tiny_model.py" "$folder/model/tiny-llama"
  touch "$folder/model.done"
fi
if [ -n "$installs_only" ]; then
  echo "installed in $folder"
  exit 0
fi

say "Building the proxy and the suite"
cargo build --locked -p gco-proxy -p gco-tests --bin gco-proxy --bin real-engines
target="$(cargo metadata --locked --format-version 1 --no-deps | "$python" -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')"

say "Running the suite: small takes five minutes on a quiet machine with two cores, full ten"
status=0
GCO_REAL_ENGINES_FOLDER="$folder" "$target/debug/real-engines" ${arguments[@]+"${arguments[@]}"} || status=$?
exit "$status"
