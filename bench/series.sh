#!/usr/bin/env bash
# Runs every part of the ladder with a real model on this machine, compares its tokens with the published ones, and writes the
# report: figures, a page for each engine, and the published points beside the measured ones.
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
source_text="$root/bench/traces/prompt_source.txt"

if $quick; then
  runs=(--runs=1 --warmup=0 --new_tokens=8) prompts=p16,p256 sizes=1,4 mixed=none rates=8 requests=8
else
  runs=(--runs=5 --warmup=2) prompts=p16,p64,p256,p1024,p4096 sizes=1,2,4,8,16,32,64,128,256,512,1024 mixed=8,32 rates=1,2,3,4,5,6,7,8 requests=400
fi
on=("--model=$model" "--device=$device" "--commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null || true)")
common=("${on[@]}" "--out=$out" "--source=$source_text")
batched=batched,continuous,paged,chunked,fused,flash,ridge

"$bench" closed "${common[@]}" --engine=naive,cached --prompts=$prompts "${runs[@]}"
"$bench" closed "${common[@]}" --engine=$batched --prompts=p256 --batch_size=$sizes "${runs[@]}"
if [ "$mixed" != none ]; then
  "$bench" closed "${common[@]}" --engine=$batched --prompts=none --mixed=$mixed "${runs[@]}" --max_batch="${sizes##*,}" --max_context=4352
  "$bench" arrivals "${common[@]}" --engine=$batched --rates=$rates --requests=$requests --least_served=0.8
else
  "$bench" draw --requests=$requests --rates=$rates --out="$out/workload.jsonl"
fi
"$bench" overhead "${on[@]}" --engine=cached,ridge | tee "$out/overhead-all.md"

status=0
for engine in ${batched//,/ } naive; do
  echo "$engine against cached:"
  "$bench" parity --a="$out/cached" --b="$out/$engine" --model="$model" --device="$device" --source="$source_text" || status=$?
done
if [ "$golden" != none ]; then
  python3 "$root/bench/report.py" golden "$golden" "$out/golden"
  echo "cached against the published tokens:"
  "$bench" parity --a="$out/cached" --b="$out/golden" --model="$model" --device="$device" --source="$source_text" || status=$?
fi
python3 "$root/bench/plot.py" "$out" --published || echo "series.sh: no figures (matplotlib is needed)" >&2
python3 "$root/bench/report.py" write "$out"
python3 "$root/bench/report.py" published "$out"
exit $status
