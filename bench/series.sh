#!/usr/bin/env bash
# Runs every part of the ladder with a real model on this machine (ladder.sh), compares its tokens with the published ones, and
# writes the report: figures, a page for each engine, the series' claims, and the published points beside the measured ones.
#
# usage: bench/series.sh --model DIR [--device auto] [--out DIR] [--golden FILE|none] [--quick] [--bench RIDGE_BENCH]
#   --model   Qwen2.5-1.5B as a Hugging Face directory or GGUF file (any model runs; only this one has published tokens)
#   --out     where records and report go; a run that broke off goes on there   (build/series/<device>)
#   --golden  token ids to compare with   (bench/traces/golden-qwen2.5-1.5b-fp16-greedy256.json)
#   --quick   one run of each, few sizes: to see that everything works
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
model="" device=auto out="" golden="$root/bench/traces/golden-qwen2.5-1.5b-fp16-greedy256.json" quick=false
bench="$root/build/release/bin/ridge-bench"

die() {
  echo "series.sh: $*" >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=true && shift && continue ;;
    --model | --device | --out | --golden | --bench) [ $# -ge 2 ] || die "$1 needs a value" ;;
    *) die "unknown argument $1; see the head of this file" ;;
  esac
  declare "${1#--}=$2"
  shift 2
done
[ -n "$model" ] || die "--model is required"
[ -x "$bench" ] || die "--bench: $bench is not there; build first (cmake --preset release && cmake --build --preset release)"
[ "$golden" = none ] || [ -f "$golden" ] || die "--golden: $golden is not there"
out="${out:-$root/build/series/$device}"

$quick && size=tiny services=(--services no) || size=series services=()
"$root/bench/ladder.sh" --model "$model" --device "$device" --out "$out" --size $size --bin "$(dirname "$bench")" "${services[@]}"

status=0
for engine in naive batched continuous paged chunked fused flash ridge; do
  echo "$engine against cached:"
  "$bench" parity --a="$out/cached" --b="$out/$engine" --model="$model" --device="$device" || status=$?
done
if [ "$golden" != none ]; then
  python3 "$root/bench/report.py" golden "$golden" "$out/golden"
  echo "cached against the published tokens:"
  "$bench" parity --a="$out/cached" --b="$out/golden" --model="$model" --device="$device" || status=$?
fi
python3 "$root/bench/plot.py" "$out" --published || echo "series.sh: no figures (matplotlib is needed)" >&2
python3 "$root/bench/report.py" write "$out"
printf '# The series here\n\n<!-- engines -->\n<!-- end -->\n\n<!-- parts -->\n<!-- end -->\n\n<!-- predictions -->\n<!-- end -->\n' >"$out/STORY.md"
python3 "$root/bench/story.py" "$out/STORY.md" "$out"
python3 "$root/bench/report.py" published "$out"
exit $status
