#!/usr/bin/env bash
# Prints how many compilations may run at once here: one a core, and 2 GB of free memory for each.
set -euo pipefail

cores=$(nproc)
by_memory=$(awk '/^MemAvailable:/ { print int($2 / (2 * 1000 * 1000)) }' /proc/meminfo)
jobs=$((cores < by_memory ? cores : by_memory))
echo $((jobs > 1 ? jobs : 1))
