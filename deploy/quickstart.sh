#!/usr/bin/env bash
# From a clone to a streamed answer: installs packages, builds, fetches a model, starts a worker and a router on loopback,
# streams one answer and shows the metrics that it moved. Leaves nothing running, unless --serve.
#
# usage: deploy/quickstart.sh [--serve | --help]
#   --serve  keep worker and router running after the answer, until Ctrl-C
#
# Ports: 50051/9101 (worker) and 50050/9100 (router) where they are free, any others where they are not. Logs of a run that
# failed, or that serves, are in build/quickstart/PID; the next run removes those of runs that ended.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
readonly bin=build/release/bin
readonly logs=build/quickstart/$$
readonly start_timeout_s=120
readonly stop_timeout_s=40  # a process drains for 30 s at most

step() { echo "==> $*"; }

die() {
  echo "quickstart: $*" >&2
  exit 1
}

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; }

serve=false
case "${1:-}" in
  "") ;;
  --serve) serve=true ;;
  --help | -h)
    usage
    exit 0
    ;;
  *) die "unknown argument '$1'; usage: deploy/quickstart.sh [--serve | --help]" ;;
esac

started=()  # pids, in the order of starting

# Ends what was started, last first; whatever does not drain in time is killed.
stop_all() {
  local status=$? i pid deadline=$((SECONDS + stop_timeout_s))
  trap - EXIT
  trap '' INT TERM
  for ((i = ${#started[@]} - 1; i >= 0; i--)); do
    pid=${started[i]}
    kill -TERM "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
    if kill -0 "$pid" 2>/dev/null; then kill -KILL "$pid"; fi
    wait "$pid" 2>/dev/null || true
  done
  if [ "$status" -eq 0 ]; then rm -rf "$logs"; fi
  exit $status
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Loopback is reached directly, whatever proxy the environment names.
get() { curl --noproxy '*' --silent --fail "$@"; }

# Prints the port if nothing listens there, else 0, which lets the process choose.
free_port_or_any() {
  if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then echo 0; else echo "$1"; fi
}

# start NAME ARGUMENTS...: starts build/release/bin/NAME and waits until it is ready. Sets grpc_address, metrics_address.
start() {
  local name=$1 log=$logs/$1.log pid deadline=$((SECONDS + start_timeout_s))
  "$bin/$name" "${@:2}" >"$log" 2>&1 &
  pid=$!
  started+=("$pid")
  local ready='s/.*ready: gRPC on ([0-9.]+:[0-9]+), metrics on ([0-9.]+:[0-9]+).*/\1 \2/p'
  grpc_address="" metrics_address=""
  until [ -n "$metrics_address" ] && get --output /dev/null "http://$metrics_address/readyz"; do
    kill -0 "$pid" 2>/dev/null || die "$name ended; its log, $log, closes with: $(tail -n 3 "$log")"
    [ $SECONDS -lt $deadline ] || die "$name is not ready after $start_timeout_s s; see $log"
    sleep 0.1
    read -r grpc_address metrics_address < <(sed -n -E "$ready" "$log") || true
  done
}

# Counters, and the counts of histograms, of both processes.
counts() {
  get "http://$worker_metrics/metrics" "http://$router_metrics/metrics" |
    grep -E '^ridge_[a-z0-9_]+(_total|_count)(\{[^}]*\})? ' || true
}

step "installing packages (Debian, Ubuntu)"
deploy/install-packages.sh

jobs=$(deploy/build-jobs.sh)
step "building in build/release, $jobs compilations at once"
cmake --preset release >/dev/null
cmake --build --preset release -j "$jobs" --target ridge-worker ridge-router ridge-bench

step "fetching the model SmolLM2-135M-Instruct"
model=$(deploy/fetch-model.sh)

for run in build/quickstart/*; do
  if ! kill -0 "${run##*/}" 2>/dev/null; then rm -rf "$run"; fi
done
mkdir -p "$logs"
step "starting ridge-worker (log: $logs/ridge-worker.log)"
start ridge-worker --model "$model" --listen "127.0.0.1:$(free_port_or_any 50051)" \
  --metrics-port "$(free_port_or_any 9101)"
worker=$grpc_address worker_metrics=$metrics_address
echo "    gRPC on $worker, metrics on http://$worker_metrics/metrics"

step "starting ridge-router (log: $logs/ridge-router.log)"
start ridge-router --workers "$worker" --listen "127.0.0.1:$(free_port_or_any 50050)" \
  --metrics-port "$(free_port_or_any 9100)"
router=$grpc_address router_metrics=$metrics_address
echo "    gRPC on $router, metrics on http://$router_metrics/metrics"

question="Why is the sky blue? Answer in two sentences."
step "asking through the router: $question"
before=$(counts)
"$bin/ridge-bench" ask --target "$router" --chat "$question" --max-tokens 80 --temperature 0 || die "no answer"
echo

step "the metrics that this answer moved (before -> after)"
awk 'NR == FNR { before[$1] = $2; next }
     $2 != before[$1] + 0 { printf "    %-62s %6d -> %d\n", $1, before[$1], $2 }' <(echo "$before") <(counts)

if $serve; then
  step "serving; Ctrl-C stops both. Ask from another terminal:"
  echo "    build/release/bin/ridge-bench ask --target $router --chat \"Name three rivers of Europe.\""
  trap 'exit 0' INT TERM
  wait -n "${started[@]}" || true
  die "one of the two ended on its own; see $logs"
fi
step "stopping both"
