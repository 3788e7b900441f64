#!/usr/bin/env bash
# Measures the ladder: closed runs, arrival sweeps, controls, network and goodput of every engine, and what a pass costs. What broke off goes on
# where it stopped. bench/plot.py, bench/report.py and bench/story.py make pages of what it leaves.
#
# usage: bench/ladder.sh --model MODEL --out DIR [--device auto] [--size gpu|series|cpu|quick|tiny] [--part all|a|b] [--services yes|no]
#                        [--only PATTERN] [--bin DIR] [--commit NAME] [--expect-device NAME]
#   --size      series: the series' own sizes and rates, for a card like its; gpu: the same with fewer runs and higher rates, for a faster
#               card; cpu: a small model's on a CPU; quick, tiny: one of each, to see that everything works (tiny: within 512 tokens)
#   --part      a and b are about half each and may run at the same time on two cards, into two folders
#   --only      the tasks whose names match, as "goodput", "mixed-ridge" or "^(pool|slots)"; all names are at the end of this file
#   --services  network and goodput through ridge-worker and ridge-router (yes) or of engines in this process (no: simulated cards on a virtual clock)
#   --bin       where ridge-bench, ridge-worker and ridge-router lie   (build/release/bin)
#   --commit    recorded   (what git says of these sources)
#   --out       DIR/ENGINE; DIR/controls/NAME/ENGINE, DIR/network/ENGINE and DIR/goodput/ENGINE; DIR/overhead-PART.md
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
model="" out="" device=auto size=gpu part=all only="" services="" bin="$root/build/release/bin" commit="" expect_device=""

die() {
  echo "ladder.sh: $*" >&2
  exit 1
}

while [ $# -gt 0 ]; do
  case "$1" in
    --help) sed -n '2,/^set /{s/^# \{0,1\}//p}' "$0" && exit ;;
    --model | --out | --device | --size | --part | --only | --services | --bin | --commit | --expect-device) [ $# -ge 2 ] || die "$1 needs a value" ;;
    *) die "unknown argument $1; see the head of this file" ;;
  esac
  name="${1#--}"
  declare "${name//-/_}=$2"
  shift 2
done
[ -n "$model" ] || die "--model is required"
[ -n "$out" ] || die "--out is required"
[[ $part =~ ^(all|a|b)$ ]] || die "--part: $part is none of all, a, b"
# Bash's answer to what is no pattern is 2.
rc=0 && [[ "" =~ $only ]] 2>/dev/null || rc=$?
[ $rc -le 1 ] || die "--only: $only is no pattern"
if [ -z "$services" ]; then [[ $device == simulated:* ]] && services=no || services=yes; fi
[[ $services =~ ^(yes|no)$ ]] || die "--services: $services is none of yes, no"
needed="ridge-bench"
if [ "$services" = yes ]; then needed="$needed ridge-worker ridge-router"; fi
for program in $needed; do [ -x "$bin/$program" ] || die "--bin: $bin/$program is not there; build first"; done

nine="naive cached batched continuous paged chunked fused flash ridge" batched="batched continuous paged chunked fused flash ridge"
workload="" new_tokens="" singles="naive cached" sweeps=$batched least_served=0.9 slow_rate="" slow_requests="" network="" cached_rates=""
case "$size" in
  gpu)
    runs=(--runs=5 --warmup=2 --most_time=2s --largest_warmed=128) single_time=20s prompts=p16,p64,p256,p1024,p4096 batch_prompt=p256
    sizes=1,2,4,8,16,32,64,128,256,512,1024 mixed=8,32 slow_rate=8 slow_requests=200 rates=16,32,64,128,256 cached_rates=32,64,128,256 requests=400 context=4352
    budgets="128 256 512 1024" budget_rate=16 budget_requests=100 many=64 pool=512MiB first_rate=32 goodput_requests=400
    ;;
  series)
    runs=(--runs=5 --warmup=2) single_time=0s prompts=p16,p64,p256,p1024,p4096 batch_prompt=p256
    sizes=1,2,4,8,16,32,64,128,256,512,1024 mixed=8,32 rates=1,2,3,4,5,6,7,8 cached_rates=4,8 least_served=0.6 requests=400 context=4352
    budgets="128 256 512 1024" budget_rate=3 budget_requests=100 many=64 pool=512MiB first_rate=2 goodput_requests=400
    network=1,8,32,128 network_requests=128 network_rates=2,4,6,8
    ;;
  cpu)
    runs=(--runs=3 --warmup=1 --most_time=8s) new_tokens=32 single_time=8s prompts=p16,p64,p256,p1024 batch_prompt=p64
    sizes=2,4,8,16 mixed="" rates=1,2,4 least_served=0.5 requests=24 context=1088 workload="$root/bench/traces/mixed-cpu-24.jsonl"
    budgets="" pool="" first_rate="" singles=$nine sweeps="batched continuous chunked ridge"
    ;;
  quick)
    runs=(--runs=1 --warmup=0) new_tokens=8 single_time=0s prompts=p16,p256 batch_prompt=p64
    sizes=1,4 mixed=4 rates=20,40 cached_rates=20 requests=8 context=4352
    budgets="128 512" budget_rate=20 budget_requests=8 many=6 pool=512MiB first_rate=2 goodput_requests=8
    ;;
  tiny)
    runs=(--runs=1 --warmup=0) new_tokens=8 single_time=0s prompts=p16,p256 batch_prompt=p64
    sizes=1,4 mixed="" rates=50 cached_rates=50 requests="" context=512 workload="$root/bench/traces/mixed-tiny-8.jsonl"
    budgets=128 budget_rate=50 pool="" first_rate=""
    ;;
  *) die "--size: $size is none of gpu, series, cpu, quick, tiny" ;;
esac

[ -n "$commit" ] || commit="$(git -C "$root" rev-parse --short HEAD 2>/dev/null || true)"
on=("--model=$model" "--device=$device" "--commit=$commit" "--expect_device=$expect_device")
common=("${on[@]}" "--source=$root/bench/traces/prompt_source.txt")
mkdir -p "$out/done" || die "--out: $out cannot be written"
# Two at a time would spoil each other's records. Programs that outlive a killed ladder do not hold the lock.
exec 9<"$out" && flock -n 9 || die "--out: $out: another ladder writes there"
measured="--model $model --device $device --size $size --services $services"
# A folder is of one ladder from the first task that was done on; until then a wrong model, say, may be set right.
if [ -n "$(find "$out/done" -type f ! -name of -print -quit)" ] && [ "$(cat "$out/done/of")" != "$measured" ]; then
  die "--out: $out holds a ladder of $(cat "$out/done/of"); take another folder"
fi

# What arrives: a frozen workload, or the draw's first requests.
arriving=("--requests=$requests") budgeted=("--requests=${budget_requests:-}")
if [ -n "$workload" ]; then arriving=("--workload=$workload") budgeted=("${arriving[@]}"); fi

# task NAME COMMAND...: runs a command, unless it was run to its end before.
matched=0
task() {
  local name=$1 begin=$SECONDS
  shift
  [[ $name =~ $only ]] || return 0
  matched=$((matched + 1))
  if [ -e "$out/done/$name" ]; then return; fi
  echo "== $name (at $SECONDS s)"
  "$@"
  echo "== $name took $((SECONDS - begin)) s"
  echo "$measured" >"$out/done/of"
  touch "$out/done/$name"
}

tokens=${new_tokens:+--new_tokens=$new_tokens}
bench() { "$bin/ridge-bench" "$@" 9<&-; }

single() { bench closed "${common[@]}" --out="$out" --engine="$1" --prompts=$prompts "${runs[@]}" $tokens --max_batch=1 --most_time=$single_time; }
batches() { bench closed "${common[@]}" --out="$out" --engine="$1" --prompts=$batch_prompt --batch_size=$sizes "${runs[@]}" $tokens; }
# The draw says how many tokens are asked for.
mixed() { bench closed "${common[@]}" --out="$out" --engine="$1" --prompts=none --mixed=$mixed --max_batch=32 --max_context=$context "${runs[@]}"; }
# The slowest rate with fewer requests, where a whole sweep of it would take most of the time.
arrivals() {
  if [ -n "$slow_rate" ]; then
    bench arrivals "${common[@]}" --out="$out" --engine="$1" --rates="$slow_rate" --requests="$slow_requests" --max_context=$context
  fi
  bench arrivals "${common[@]}" --out="$out" --engine="$1" --rates=$rates "${arriving[@]}" \
    --least_served=$least_served --max_context=$context
}
one_at_a_time() {  # as a server with one slot
  bench arrivals "${common[@]}" --out="$out" --engine="$1" --in_flight=1 "${arriving[@]}" --max_context=$context
}
prefix_cache() {
  bench arrivals "${common[@]}" --out="$out/controls/prefix-cache" --engine=ridge --prefix_cache=on --rates="$cached_rates" \
    "${arriving[@]}" --least_served=0.9 --max_context=$context
}
chunk_budget() {  # ENGINE TOKENS
  bench arrivals "${common[@]}" --out="$out/controls/chunk-$2" --engine="$1" --chunk_tokens="$2" --rates=$budget_rate \
    "${budgeted[@]}" --max_context=$context
}
capped_pool() {
  bench closed "${common[@]}" --out="$out/controls/pool-$pool" --engine="$1" --prompts=none --mixed=$many --max_batch=32 \
    --kv_cache_bytes=$pool --max_context=$context --runs=1 --warmup=1
}
slots() {  # ENGINE SLOTS
  bench closed "${common[@]}" --out="$out/controls/slots-$2" --engine="$1" --prompts=none --mixed=$many --max_batch="$2" \
    --max_context=$context --runs=1 --warmup=1
}
overhead() { bench overhead "${on[@]}" --engine=cached,ridge | tee "$out/overhead-$part.md"; }

# Goodput: the highest rate of the mixed draw that meets the limits, prefix cache off.
goodput() {
  local at="--goodput --first_rate=$first_rate --requests=$goodput_requests --commit=$commit --source=$root/bench/traces/prompt_source.txt"
  if [ "$services" = no ]; then
    bench arrivals "${common[@]}" --out="$out/goodput" --engine="$1" --max_batch=64 $at
    return
  fi
  start_services "$1" 64
  bench serve-load --target="127.0.0.1:$port" --called="$1" --through="$between" --expect_device="$expect_device" --out="$out/goodput" $at
  stop_services
}

# So many requests at once, and some that arrive over time, through worker and router.
network() {
  start_services "$1" 32
  local at="--target=127.0.0.1:$port --called=$1 --out=$out/network --commit=$commit --source=$root/bench/traces/prompt_source.txt"
  bench serve-load $at --through="$between" --expect_device="$expect_device" --in_flight=$network --requests=$network_requests
  bench serve-load $at --through="$between" --expect_device="$expect_device" --rates=$network_rates --requests=$requests
  stop_services
}

port=$([ "$part" = b ] && echo 50180 || echo 50120)
started=()

# start PROGRAM FLAG...: on $port, and its metrics on the next one; waits until it is ready, half a minute at most.
start() {
  local program=$1 i line
  shift
  port=$((port + 2))
  "$bin/$program" --listen="127.0.0.1:$port" --metrics_port=$((port + 1)) --log_level=warning "$@" 9<&- &
  started+=($!)
  for ((i = 0; i < 300; i++)); do
    kill -0 "${started[-1]}" 2>/dev/null || die "$program ended before it was ready"
    if { exec 3<>"/dev/tcp/127.0.0.1/$((port + 1))"; } 2>/dev/null; then
      printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3
      read -r line <&3 || true
      exec 3>&-
      if [[ ${line:-} == *" 200 "* ]]; then return; fi
    fi
    sleep 0.1
  done
  die "$program is not ready after 30 s"
}

between="worker and router"
# start_services ENGINE SEQUENCES: a worker and, on $port, a router in front of it.
start_services() {
  start ridge-worker --model="$model" --device="$device" --engine="$1" --prefix_cache=off --max_batch="$2"
  local worker=$port
  start ridge-router --workers="127.0.0.1:$worker"
}

stop_services() {
  local pid
  for pid in "${started[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
  started=()
}
trap stop_services EXIT

# in_part PART NAME COMMAND...: a task of one of the halves.
in_part() {
  local half=$1
  shift
  if [ "$part" = all ] || [ "$part" = "$half" ]; then task "$@"; fi
}

# Which half measures an engine's batches and arrivals.
declare -A half=([naive]=a [cached]=b [batched]=a [continuous]=b [paged]=a [chunked]=b [fused]=a [flash]=b [ridge]=b)

for engine in $singles; do in_part "${half[$engine]}" "single-$engine" single "$engine"; done
for engine in $batched; do in_part "${half[$engine]}" "batches-$engine" batches "$engine"; done
for engine in $sweeps; do in_part "${half[$engine]}" "arrivals-$engine" arrivals "$engine"; done
if [ -n "$workload" ]; then in_part a one-at-a-time-ridge one_at_a_time ridge; fi
if [ -n "$first_rate" ]; then
  for engine in flash ridge; do in_part b "goodput-$engine" goodput "$engine"; done
fi
if [ -n "$cached_rates" ]; then in_part a prefix-cache prefix_cache; fi
if [ -n "$network" ] && [ "$services" = yes ]; then
  for engine in flash ridge; do in_part b "network-$engine" network "$engine"; done
fi
if [ -n "$mixed" ]; then
  for engine in $batched; do in_part "${half[$engine]}" "mixed-$engine" mixed "$engine"; done
fi
in_part a overhead overhead
if [ -n "$pool" ]; then
  for engine in continuous paged ridge; do in_part a "pool-$engine" capped_pool "$engine"; done
  for count in 8 32; do
    for engine in batched continuous ridge; do in_part a "slots-$count-$engine" slots "$engine" "$count"; done
  done
fi
for tokens in $budgets; do
  in_part a "chunk-$tokens" chunk_budget chunked "$tokens"
done
[ $matched -gt 0 ] || die "--only: no task of --size $size, --part $part, --services $services matches $only"
echo "== all done (at $SECONDS s)"
