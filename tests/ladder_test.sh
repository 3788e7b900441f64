#!/usr/bin/env bash
# What bench/ladder.sh refuses, and what it takes: with a stand-in for ridge-bench, which fails for the model "wrong".
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
cat >"$work/bin/ridge-bench" <<'EOF'
#!/usr/bin/env bash
[[ "$*" != *--model=wrong* ]] || { echo "no such model" >&2; exit 1; }
EOF
chmod +x "$work/bin/ridge-bench"
failed=0

# ladder RC TEXT ARGUMENT...: it ends with RC and says TEXT.
ladder() {
  local want=$1 text=$2 said rc=0
  shift 2
  said="$("$root/bench/ladder.sh" --bin "$work/bin" --device simulated:a10 --size quick "$@" 2>&1)" || rc=$?
  if [ $rc -ne "$want" ] || [[ $said != *"$text"* ]]; then
    echo "ladder.sh $*: rc $rc, not $want with \"$text\": $said"
    failed=1
  fi
}

ladder 1 "--only: no task of --size quick, --part all, --services no matches nothing" --model right --out "$work/none" --only nothing
ladder 1 "--only: no task" --model right --out "$work/none" --part a --only '^goodput_'
ladder 1 "--only: [ is no pattern" --model right --out "$work/none" --only '['
ladder 1 "--services: maybe is none of yes, no" --model right --out "$work/none" --services maybe

[[ "$("$root/bench/ladder.sh" --help)" == *"usage: bench/ladder.sh --model MODEL"* ]] || { echo "ladder.sh --help"; failed=1; }
[[ "$("$root/bench/series.sh" --help)" == *"usage: bench/series.sh --model DIR"* ]] || { echo "series.sh --help"; failed=1; }

# A folder is bound by the first task that was done, not by one that failed.
ladder 1 "no such model" --model wrong --out "$work/bound" --only overhead
ladder 0 "all done" --model right --out "$work/bound" --only overhead
ladder 0 "all done" --model right --out "$work/bound" --only overhead
ladder 1 "holds a ladder of --model right --device simulated:a10" --model wrong --out "$work/bound" --only overhead
mkdir -p "$work/typo/done"
echo "--model typo" >"$work/typo/done/of"
ladder 0 "all done" --model right --out "$work/typo" --only overhead

# One at a time in a folder.
mkdir "$work/locked"
exec 8<"$work/locked"
flock 8
ladder 1 "--out: $work/locked: another ladder writes there" --model right --out "$work/locked" --only overhead
exec 8<&-
ladder 0 "all done" --model right --out "$work/locked" --only overhead
exit $failed
