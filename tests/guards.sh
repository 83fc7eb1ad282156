#!/usr/bin/env bash
# Takes guards out of the product, one at a time, in a copy of the tree, and shows which tests notice.
#
#   tests/guards.sh           every guard of tests/guards/
#   tests/guards.sh 05 17     these
#
# A guard whose absence no test notices is an error. Each patch names the tests that are run for it; they are built in the
# project's own target folder, so that nothing but the changed crates is built anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root="$PWD"
copy="$(mktemp -d)"
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$copy"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}" RUST_BACKTRACE=0
cd "$copy"
git init --quiet .

# Building anew with other features is the longest part: up to ten minutes on two busy cores.
longest_seconds=1800
unnoticed=0
for patch in "$root"/tests/guards/*.patch; do
  name="$(basename "$patch" .patch)"
  if [ "$#" -gt 0 ]; then
    wanted=no
    for number in "$@"; do [[ "$name" == "$number"* ]] && wanted=yes; done
    [ "$wanted" = yes ] || continue
  fi
  read -r -a suite <<<"$(sed -n 's/^Suite: //p' "$patch")"
  git apply "$patch"
  status=0
  timeout "$longest_seconds" cargo test --quiet "${suite[@]}" >output.txt 2>&1 || status=$?
  if [ "$status" -eq 0 ]; then
    echo "$name: NOT NOTICED by cargo test ${suite[*]}"
    unnoticed=$((unnoticed + 1))
  elif [ "$status" -eq 124 ]; then
    echo "$name: did not end within $longest_seconds s"
    unnoticed=$((unnoticed + 1))
  elif ! grep -q '^test result: FAILED' output.txt; then
    echo "$name: does not build"
    grep -m 5 -E '^error' output.txt || true
    unnoticed=$((unnoticed + 1))
  else
    echo "$name: $(sed -n 's/^    \([a-z_0-9:]*\)$/\1/p' output.txt | sort -u | tr '\n' ' ')"
  fi
  git apply --reverse "$patch"
done
[ "$unnoticed" -eq 0 ]
