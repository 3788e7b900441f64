"""A room includes only the rooms below it: checks every #include of the tree against the direction of dependency."""
import pathlib
import re
import sys

# Each room and what it may include besides itself and generated protos.
ALLOWED = {
    "common": set(),
    "kernels": set(),
    "worker/model": {"common", "kernels"},
    "worker/text": {"common", "worker/model"},
    "worker/backend": set(),
    "worker/backend/cpu": {"common", "kernels", "worker/backend", "worker/model"},
    "worker/backend/cuda": {"common", "kernels", "worker/backend", "worker/model"},
    "worker/backend/simulated": {"common", "worker/backend", "worker/model"},
    "worker/memory": {"common", "worker/backend"},
    "worker/decision": {"common", "worker/backend", "worker/memory"},
    "worker/loop": {"common", "worker/backend", "worker/memory", "worker/decision"},
    "worker/service": {"common", "worker/backend", "worker/backend/cpu", "worker/backend/cuda", "worker/backend/simulated", "worker/decision", "worker/loop",
                       "worker/model", "worker/text"},
    "router": {"common"},
    "bench": {"bench/flags", "bench/ladder", "bench/measure", "bench/records", "bench/roofline", "bench/serve", "bench/workload", "common", "worker/model"},
    "bench/records": {"common"},
    "bench/kernels": {"common", "kernels", "worker/backend", "worker/backend/cpu", "worker/backend/cuda", "worker/model"},
    "bench/backend": {"bench/kernels", "common", "kernels", "worker/backend", "worker/backend/cpu", "worker/model"},
    "bench/engine": {"common", "worker/backend", "worker/backend/simulated", "worker/decision", "worker/loop", "worker/memory", "worker/model"},
    "bench/load": {"common", "worker/backend", "worker/backend/cpu", "worker/model"},
    "bench/tokenizer": {"common", "worker/text"},
    "bench/flags": set(),
    "bench/ladder": {"bench/flags", "bench/measure", "bench/records", "bench/workload", "common", "worker/backend", "worker/backend/simulated", "worker/decision",
                     "worker/memory", "worker/model", "worker/service"},
    "bench/measure": {"bench/records", "bench/workload", "common", "worker/backend", "worker/decision", "worker/loop", "worker/memory", "worker/model"},
    "bench/roofline": {"worker/model"},
    "bench/serve": {"bench/flags", "bench/measure", "bench/records", "bench/workload", "common"},
    "bench/workload": {"common", "kernels", "worker/backend", "worker/text"},
}
# Rooms that may see protos and gRPC.
EDGES = {"common", "worker/service", "router", "bench", "bench/measure", "bench/serve"}


def room_of(path):
    """The innermost room that holds a path, or None."""
    return max((room for room in ALLOWED if path.startswith(room + "/")), key=len, default=None)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    faults, count = [], 0
    for file in sorted(p for room in {r.split("/")[0] for r in ALLOWED} for p in (root / room).rglob("*.[hc]*")):
        path = file.relative_to(root).as_posix()
        room = room_of(path)
        if room is None or file.suffix not in (".h", ".cc", ".cu", ".cuh"):
            continue
        for include in re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE):
            count += 1
            other = room_of(include)
            if other is not None and other != room and other not in ALLOWED[room]:
                faults.append(f"{path} includes {include}: {room} must not use {other}")
            if include.startswith(("ridge/", "grpc")) and room not in EDGES:
                faults.append(f"{path} includes {include}: protos and gRPC stop at the edge")
    print("\n".join(faults) or f"{count} includes follow the direction of dependency")
    return 1 if faults or count == 0 else 0


sys.exit(main())
