"""cuBLAS, through PyTorch, on the matmuls of Qwen2.5-1.5B: the yardstick of cuda-bench on the same card.

usage: cublas_bench.py OUT.json"""
import json
import sys

import torch

SHAPES = [("qkv", 2048, 1536), ("o", 1536, 1536), ("gate_up", 17920, 1536), ("down", 1536, 8960)]
MATRICES = 8  # so that weights do not come from the L2 of the run before


def microseconds(m, n, k):
    """Median time of one product, fp16 with random data."""
    x = torch.randn(m, k, device="cuda", dtype=torch.float16)
    matrices = [torch.randn(n, k, device="cuda", dtype=torch.float16) / k**0.5 for _ in range(MATRICES)]
    times = []
    for _ in range(9):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for w in matrices:
            x @ w.t()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / MATRICES)
    return sorted(times[2:])[3]


results = []
for name, n, k in SHAPES:
    for m in (128, 256, 1024, 4096):
        us = microseconds(m, n, k)
        results.append({"name": name, "m": m, "us": us, "tflops": 2 * m * n * k / us * 1e-6})
        print("cublas %-8s %5d %9.2f us %7.1f TFLOPS" % (name, m, us, results[-1]["tflops"]))
with open(sys.argv[1], "w") as out:
    json.dump(results, out, indent=1)
