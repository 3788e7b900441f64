#!/usr/bin/env bash
# Runs the tests that need a card, those of the numerics contract's facts first; says so and succeeds where there is no card.
#
# usage: tests/gpu/run.sh [directory of the test binaries (default build/release/tests/gpu)] [GoogleTest arguments]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
directory=${1:-$root/build/release/tests/gpu}
shift || true
# The binaries may have been built from another checkout.
export RIDGE_TEST_DATA_DIR=${RIDGE_TEST_DATA_DIR:-$root/tests/golden}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "no CUDA device: tests/gpu skipped"
  exit 0
fi
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory --format=csv,noheader

"$directory/numerics_gpu_test" "$@"
failed=()
for test in "$directory"/*_gpu_test; do
  [ "$test" = "$directory/numerics_gpu_test" ] && continue
  "$test" "$@" || failed+=("$(basename "$test")")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all passed"
