#!/usr/bin/env bash
# What ridge-bench's command line refuses, with the flag's name.
# usage: bench_cli_test.sh RIDGE_BENCH
set -euo pipefail
bench=$1
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0

# bench RC TEXT ARGUMENT...: it ends with RC and says TEXT.
bench() {
  local want=$1 text=$2 said rc=0
  shift 2
  said="$("$bench" "$@" 2>&1)" || rc=$?
  if [ $rc -ne "$want" ] || [[ $said != *"$text"* ]]; then
    echo "ridge-bench $*: rc $rc, not $want with \"$text\": $said"
    failed=1
  fi
}

on=(--model=synthetic:qwen2.5-1.5b --device=simulated:a10 --out="$work/out")
closed=(closed "${on[@]}" --runs=1 --warmup=0 --new_tokens=2)

# An unset variable of a shell is not the default.
bench 1 "--engine: has no value" "${closed[@]}" --engine ''
bench 1 "--prompts: has no value" "${closed[@]}" --prompts=
bench 1 "--workload: has no value" arrivals "${on[@]}" --workload=
for flag in seed top_p top_k min_p temperature stop prompt_ids; do bench 1 "--$flag: has no value" ask --prompt=a "--$flag="; done
bench 0 "p16-x1, run 0" "${closed[@]}" --commit= --expect_device= --launch=

for flag in commit out mooncake; do bench 1 "--$flag: not valid UTF-8" arrivals "${on[@]}" "--$flag=$(printf 'a\377')"; done

for flag in ttft_limit itl_limit; do
  bench 1 "--$flag: must be more than 0" arrivals "${on[@]}" --goodput "--$flag=-1s"
  bench 1 "--$flag: must be more than 0" arrivals "${on[@]}" --goodput "--$flag=0s"
done
for value in inf nan -1 2e6; do
  bench 1 "--last_rate: is neither 0 nor a rate" arrivals "${on[@]}" --rates=1 "--last_rate=$value"
  bench 1 "--first_rate: is not a rate" arrivals "${on[@]}" --goodput "--first_rate=$value"
  bench 1 "--burstiness: must be" arrivals "${on[@]}" "--burstiness=$value"
done
bench 1 "--virtual_clock: only a simulated device has one, not cpu" closed "${on[@]}" --device=cpu --virtual_clock
bench 1 "--threads: only a CPU computes by threads, not simulated:a10" closed "${on[@]}" --threads=2
for flag in batch_size new_tokens; do bench 1 "--$flag: does not go with --prompts none" closed "${on[@]}" --prompts=none --mixed=2 "--$flag=1"; done
bench 1 "--least_served: 2 is no share from 0 to 1" arrivals "${on[@]}" --rates=1 --least_served=2
bench 1 "--cancelled_share: 1.5 is no share" serve-load --out="$work/out" --cancelled_share=1.5
for name in ../x a/b '' .. .hidden; do bench 1 "--called: " serve-load --target=127.0.0.1:1 --out="$work/out" --called="$name"; done
bench 1 "UNAVAILABLE: --target" serve-load --target=127.0.0.1:1 --out="$work/out" --called=vllm-0.9_x

bench 1 "--rates: a workload is drawn at one rate" draw --rates=4,8 --requests=5 --out="$work/w.jsonl"
bench 0 "" draw --rates=4 --requests=5 --out="$work/w.jsonl"
bench 1 "--out: /dev/full: cannot be written: No space left on device" draw --rates=4 --requests=5 --out=/dev/full
bench 1 "UNAVAILABLE: --target" replay --target=127.0.0.1:1 --model=a-name --workload="$work/w.jsonl" --out="$work/out"
bench 1 "--engine: does not go with --target" replay --target=127.0.0.1:1 --engine=flash --workload="$work/w.jsonl" --out="$work/out"
echo "--engine=flash" >"$work/flags"
bench 1 "--engine: is not a flag of serve-load" serve-load --flagfile="$work/flags" --target=127.0.0.1:1 --out="$work/out"
printf -- "--workload=%s\n--target=127.0.0.1:1\n" "$work/w.jsonl" >"$work/flags"
bench 1 "UNAVAILABLE: --target" replay --flagfile="$work/flags" --out="$work/out"
bench 1 "--cancelled_share: needs --target" replay --model=synthetic:qwen2.5-1.5b --cancelled_share=0.5 --workload="$work/w.jsonl" --out="$work/out"
echo '{"timestamp":0,"input_length":40000,"output_length":8}' >"$work/long.jsonl"
bench 1 "--most_tokens: the longest request has 40008 tokens, more than the context of 32768; 32768 leaves such out" \
  replay "${on[@]}" --mooncake="$work/long.jsonl"
printf '{"timestamp":9,"input_length":8,"output_length":2}\n%.0s' 1 2 3 >"$work/once.jsonl"
bench 0 "at its own times: served" replay "${on[@]}" --mooncake="$work/once.jsonl"
bench 1 "--target: give it" replay --workload="$work/w.jsonl" --out="$work/out"

bench 1 "--b: required" parity --a="$work/out/ridge"
bench 0 "1 of 1 outputs are identical" parity --a="$work/out/ridge" --b="$work/out/ridge"
"$bench" "${closed[@]}" --out="$work/more" --prompts=p16,p64 2>/dev/null
bench 0 "1 of 1 outputs are identical; without a partner, not compared: 0 of --a, 1 of --b" \
  parity --a="$work/out/ridge" --b="$work/more/ridge"

# A file that a flag names and that has no end, or is none.
for flag in workload mooncake burstgpt; do
  bench 1 "--$flag: /dev: not a regular file" arrivals "${on[@]}" "--$flag=/dev"
  bench 1 "--$flag: /dev/zero: not a regular file" arrivals "${on[@]}" "--$flag=/dev/zero"
done
for file in /dev /dev/zero; do
  bench 1 "--device: $file: not a regular file" arrivals "${on[@]}" "--device=simulated:$file"
  bench 1 "--source: $file: not a regular file" draw --rates=4 --requests=5 --model=synthetic:qwen2.5-1.5b --out="$work/w" "--source=$file"
  bench 1 "--records: $file: not a regular file" roofline --model=synthetic:qwen2.5-1.5b --card=h200 --out="$work/w" "--records=$file"
  bench 1 "--flagfile: $file: not a regular file" ask "--flagfile=$file"
done

bench 1 'no subcommand "nope"' nope --help
bench 0 "usage: ridge-bench ask" ask --helpfull

# Two at once.
exec 8<"$work/out/ridge"
flock 8
bench 1 "--out: $work/out/ridge: another run writes there" "${closed[@]}"
exit $failed
