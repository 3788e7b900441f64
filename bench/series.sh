#!/usr/bin/env bash
# Runs every part of the ladder with a real model on this machine (ladder.sh), compares its tokens with the published ones, and
# writes the report: figures, a page for each engine, the series' claims, and the published points beside the measured ones.
#
# usage: bench/series.sh --model DIR [--device auto] [--out DIR] [--golden FILE|none] [--quick] [--bench RIDGE_BENCH]
#   --model   Qwen2.5-1.5B as a Hugging Face directory or GGUF file (any model runs; only this one has published tokens)
#   --out     where records and report go; a run that broke off goes on there   (build/series/<device>)
#   --golden  token ids to compare with   (bench/traces/golden-qwen2.5-1.5b-fp16-greedy256.json; with --quick none)
#   --quick   one run of each, few sizes, any model: to see that everything works
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
model="" device=auto out="" golden="" quick=false
bench="$root/build/release/bin/ridge-bench"

die() {
  echo "series.sh: $*" >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case "$1" in
    --help) sed -n '2,/^set /{s/^# \{0,1\}//p}' "$0" && exit ;;
    --quick) quick=true && shift && continue ;;
    --model | --device | --out | --golden | --bench) [ $# -ge 2 ] || die "$1 needs a value" ;;
    *) die "unknown argument $1; see the head of this file" ;;
  esac
  declare "${1#--}=$2"
  shift 2
done
[ -n "$model" ] || die "--model is required"
[ -x "$bench" ] || die "--bench: $bench is not there; build first (cmake --preset release && cmake --build --preset release)"
if [ -z "$golden" ]; then $quick && golden=none || golden="$root/bench/traces/golden-qwen2.5-1.5b-fp16-greedy256.json"; fi
[ "$golden" = none ] || [ -f "$golden" ] || die "--golden: $golden is not there"
out="${out:-$root/build/series/$device}"

$quick && size=tiny services=(--services no) || size=series services=()
"$root/bench/ladder.sh" --model "$model" --device "$device" --out "$out" --size $size --bin "$(dirname "$bench")" "${services[@]}"

status=0

# compare A B: the tokens of the sequences that both ran. 1: there are none; what differs is printed, and the series fails.
compare() {
  local said
  if said="$("$bench" parity --a="$out/$1" --b="$out/$2" --model="$model" --device="$device" 2>&1)"; then
    echo "$said"
  elif [[ $said == *"no workload in common"* ]]; then
    return 1
  else
    echo "$said"
    status=1
  fi
}

echo "naive against cached:"
compare cached naive || echo "not compared: there is no sequence that both ran"
for engine in batched continuous paged chunked fused flash ridge; do
  for reference in cached batched; do
    if [ $engine = $reference ]; then continue; fi
    echo "$engine against $reference:"
    if compare $reference $engine; then break; fi
    echo "not compared: there is no sequence that both ran"
  done
done
if [ "$golden" != none ]; then
  python3 "$root/bench/report.py" golden "$golden" "$out/golden"
  echo "cached against the published tokens:"
  compare cached golden || echo "not compared: there is no sequence that both ran"
fi
python3 "$root/bench/plot.py" "$out" --published || true  # it says why there are no figures
python3 "$root/bench/report.py" write "$out"
printf '# The series here\n\n<!-- engines -->\n<!-- end -->\n\n<!-- parts -->\n<!-- end -->\n\n<!-- predictions -->\n<!-- end -->\n' >"$out/STORY.md"
python3 "$root/bench/story.py" "$out/STORY.md" "$out"
python3 "$root/bench/report.py" published "$out"
exit $status
