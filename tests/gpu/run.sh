#!/usr/bin/env bash
# Runs the tests that need a card, those of the numerics contract's facts first; says so and succeeds where there is no card.
#
# usage: tests/gpu/run.sh [directory of the test binaries (default build/release/tests/gpu)] [GoogleTest arguments]
#        RIDGE_SANITIZER=racecheck tests/gpu/run.sh ...: the kernels at small sizes under compute-sanitizer's tool of that name
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

sanitizer=()
tests=("$directory"/*_gpu_test)
if [ -n "${RIDGE_SANITIZER:-}" ]; then
  tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  sanitizer=("$tool" --tool "$RIDGE_SANITIZER" --error-exitcode 9 --print-limit 20)
  tests=("$directory"/{layer_ops,matmul}_gpu_test)
  # Every plan and epilogue of the matmuls, with one chunk of K and with three.
  set -- --gtest_filter='RmsNorm.Adds*:SiluMul.*:*MatmulTest.*/n48k528' "$@"
else
  "$directory/numerics_gpu_test" "$@"
fi
failed=()
for test in "${tests[@]}"; do
  [ "$test" = "$directory/numerics_gpu_test" ] && continue
  "${sanitizer[@]}" "$test" "$@" || failed+=("$(basename "$test")")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all passed"
