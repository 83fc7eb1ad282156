#!/usr/bin/env bash
# Measures gco-proxy beside its peers and writes one report. What the figures mean: docs/proxy-bench.md.
#
#   tests/proxy-bench.sh                                        6 rounds, about 30 minutes
#   tests/proxy-bench.sh --quick                                2 rounds of half the length, about 7 minutes
#   tests/proxy-bench.sh --rounds 3 --peers nginx,vllm-router --modes main,rate
#   tests/proxy-bench.sh --help                                 every argument
#
# Two idle cores are needed. Peers are taken from PATH, or got once from Debian and PyPI into the cache folder of the bed
# (GCO_BED_CACHE, else gco-bed under XDG_CACHE_HOME, else ~/.cache/gco-bed); one that cannot be had is left out and named.
# GCO_PROXY_BINARY names a proxy to measure instead of the one that is built here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target="${CARGO_TARGET_DIR:-$PWD/target}"
say() { printf '== %s (%s)\n' "$1" "$(date -u +%H:%M:%S)" >&2; }

packages=(-p gco-proxy-bench)
[ -n "${GCO_PROXY_BINARY:-}" ] || packages+=(-p gco-proxy)
say "Building release binaries (5 to 10 minutes the first time on two cores)"
cargo build --locked --release "${packages[@]}"

commit="$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
[ -z "$(git status --porcelain 2>/dev/null)" ] || commit="$commit with changes"
[ -z "${GCO_PROXY_BINARY:-}" ] || commit="a given binary"

say "Measuring; leave the machine alone until it is done"
exec "$target/release/gco-proxy-bench" --gco-proxy "${GCO_PROXY_BINARY:-$target/release/gco-proxy}" --commit "$commit" \
  --output "$target/proxy-bench" "$@"
