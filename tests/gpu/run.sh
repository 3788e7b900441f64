#!/usr/bin/env bash
# Runs the tests that need a card, those of the numerics contract's facts first, and compares the bits of the card's own code with those of
# the portable code (PTX), where the binaries hold both; says so and succeeds where there is no card.
#
# usage: tests/gpu/run.sh [directory of the test binaries (default build/release/tests/gpu)] [GoogleTest arguments]
#        RIDGE_SANITIZER=racecheck tests/gpu/run.sh ...: the kernels at small sizes under compute-sanitizer's tool of that name (minutes)
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
declare -A small=()
if [ -n "${RIDGE_SANITIZER:-}" ]; then
  tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  sanitizer=("$tool" --tool "$RIDGE_SANITIZER" --error-exitcode 9 --print-limit 20)
  # Of the matmuls every plan and epilogue, with three chunks of K.
  small=([layer_ops]='RmsNorm.Adds*:SiluMul.*:*RopeKv*' [matmul]='*MatmulTest.*/n48k528'
    [attention]='*ChunksAndCuts*/4Of4By16:*ChunksAndCuts*/9Of3By64:*FoldsChunks*/9Of3By64'
    [sampling]='*.TakesThe*:*.Skips*:*SmallVocabularies:*.Counts*')
  # The one kernel for all layers is memcheck's alone: its counters in shared memory are no barriers to racecheck, which has no end of
  # recording those who wait for one; and synccheck does not know that cp.async.mbarrier.arrive adds to the count before it arrives.
  # So is the kernel behind attention, whose blocks count likewise.
  [ "$RIDGE_SANITIZER" = memcheck ] && small+=([backend]='*DecodeLayersTest*/FewTiles' [mlp]='*')
else
  "$directory/numerics_gpu_test" "$@"
fi
failed=()
logits=${RIDGE_TEST_LOGITS:-}
if [ -z "${RIDGE_SANITIZER:-}" ] && [ -z "$logits" ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  export RIDGE_TEST_LOGITS=$scratch/logits
fi
for test in "$directory"/*_gpu_test; do
  name=$(basename "$test" _gpu_test)
  if [ -n "${RIDGE_SANITIZER:-}" ]; then
    [ -n "${small[$name]:-}" ] || continue
    "${sanitizer[@]}" "$test" --gtest_filter="${small[$name]}" "$@" || failed+=("$name")
  elif [ "$name" != numerics ]; then
    "$test" "$@" || failed+=("$name")
  fi
done
# Both of one build: not where a filter left the first out.
if [ -z "$logits" ] && [ -s "${RIDGE_TEST_LOGITS:-}" ]; then
  portable=(env CUDA_FORCE_PTX_JIT=1 "$directory/backend_gpu_test" --gtest_filter='*EveryBuild*')
  if "${portable[@]}" >"$scratch/portable" 2>&1; then
    echo "portable code: the same numerics id and bits of logits as the card's own"
  elif grep -q "this build has no code for" "$scratch/portable"; then
    echo "no PTX in this build: portable code not compared"
  else
    cat "$scratch/portable"
    failed+=(portable)
  fi
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all passed"
