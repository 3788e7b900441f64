"""Ridge's CPU backend beside llama.cpp with F16 weights: the same threads, in turns, medians of the repeats.

usage: compare_llama_cpp.py {smollm2|qwen2.5-0.5b} [--smollm2 MODEL.gguf] [--threads 2] [--repeats 3] [--headline]

Needs a Python with llama-cpp-python, gguf and numpy (bench/README.md has the commands), build/release/bin/backend-bench
and, for smollm2, the file that deploy/fetch-model.sh prints. Writes the peer's GGUF files to build/models once.
With --headline the figures go to bench/results/<processor>/headline.json.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from headline import ROOT, write_headline  # noqa: E402

BIN = ROOT / "build/release/bin"
MODELS = ROOT / "build/models"


class Program:
    """A benchmark that answers each line on stdin with one line of JSON."""

    def __init__(self, command: list):
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.answer()

    def answer(self) -> dict:
        """The next line of JSON; the programs may log besides."""
        line = self.process.stdout.readline()
        while not line.startswith("{"):
            line = self.process.stdout.readline()
        return json.loads(line)

    def ask(self, line: str) -> dict:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()


def peer_model(name: str, smollm2: str) -> pathlib.Path:
    import llama_cpp_models

    MODELS.mkdir(parents=True, exist_ok=True)
    path = MODELS / f"{name}-f16-for-llama-cpp.gguf"
    if not path.exists():
        if name == "smollm2":
            llama_cpp_models.convert_to_f16(smollm2, path)
        else:
            llama_cpp_models.write_random_qwen2(llama_cpp_models.QWEN2_5_0_5B, path)
    return path


def compare(ridge: Program, peer: Program, command: str, repeats: int) -> tuple:
    """Medians of tokens a second of both."""
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(ridge.ask(command)["tokens_per_second"])
        theirs.append(peer.ask(command)["tokens_per_second"])
    print(f"{command:20} ridge {statistics.median(ours):8.1f} tok/s {[round(x, 1) for x in ours]}  llama.cpp "
          f"{statistics.median(theirs):8.1f} {[round(x, 1) for x in theirs]}  ratio "
          f"{statistics.median(ours) / statistics.median(theirs):.2f}", flush=True)
    return statistics.median(ours), statistics.median(theirs)


def share_of_probe(ridge: Program, repeats: int) -> tuple:
    """Weights a step over the read probe's rate, of batch 1; medians of runs in turns."""
    probes, steps = [], []
    for _ in range(repeats):
        probes.append(ridge.ask("probe")["bytes_per_second"])
        steps.append(ridge.ask("decode 1 16 24")["step_seconds"])
    probe, step = statistics.median(probes), statistics.median(steps)
    share = ridge.about["weight_bytes"] / step / probe
    print(f"probe {probe / 1e9:.1f} GB/s {[round(p / 1e9, 1) for p in probes]}, step {step * 1e3:.2f} ms "
          f"{[round(s * 1e3, 2) for s in steps]}, share {share:.3f}", flush=True)
    return share, probe, step


def long_context(ridge: Program, repeats: int, context: int = 4096) -> float:
    """What a step costs at a long context beyond a short one's, over its KV bytes at the probe's rate."""
    kv_bytes = ridge.about["kv_bytes_per_token"] * context
    probes, short, long = [], [], []
    for _ in range(3 * repeats):  # short ones, since the difference is small beside the step
        probes.append(ridge.ask("probe")["bytes_per_second"])
        short.append(ridge.ask(f"decode_at 16 {context} 5")["step_seconds"])
        long.append(ridge.ask(f"decode_at {context} {context} 5")["step_seconds"])
    beyond = statistics.median(after - before for before, after in zip(short, long))
    floor = kv_bytes / statistics.median(probes)
    print(f"context {context}: {beyond * 1e3:.2f} ms beyond a short step {[round((a - b) * 1e3, 2) for b, a in zip(short, long)]}, "
          f"KV bytes at the probe's rate {floor * 1e3:.2f} ms, ratio {beyond / floor:.2f}", flush=True)
    return beyond / floor


def start_to_first_token(model: str, repeats: int) -> float:
    """Seconds from starting ridge-worker until a client has its first token."""
    seconds = []
    for i in range(repeats):
        address = f"127.0.0.1:{55200 + i}"
        start = time.perf_counter()
        worker = subprocess.Popen([BIN / "ridge-worker", "--model", model, "--listen", address, "--metrics-port", "0"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ask = [BIN / "ridge-bench", "ask", "--target", address, "--prompt", "Hello", "--max-tokens", "1"]
        while subprocess.run(ask, capture_output=True).returncode != 0:
            time.sleep(0.01)
        seconds.append(time.perf_counter() - start)
        worker.terminate()
        worker.wait()
    print(f"start to first token {statistics.median(seconds):.2f} s {[round(s, 2) for s in seconds]}", flush=True)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["smollm2", "qwen2.5-0.5b"])
    parser.add_argument("--smollm2", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--headline", action="store_true")
    args = parser.parse_args()

    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    gguf = peer_model(args.model, args.smollm2)
    small = args.model == "smollm2"
    ours = args.smollm2 if small else "synthetic:qwen2.5-0.5b"
    ridge = Program([BIN / "backend-bench", "--model", ours, "--threads", args.threads])
    peer = Program([sys.executable, pathlib.Path(__file__).with_name("llama_cpp_bench.py"), gguf, args.threads])
    print(ridge.about["device"], "|", peer.about["system"])

    figures = []

    def figure(name, value, unit, bar, baseline):
        figures.append((name, value, unit, bar, baseline))

    def over_peer(name, command, bar):
        mine, other = compare(ridge, peer, command, args.repeats)
        figure(name, mine / other, "ratio", bar, f"llama.cpp F16 {other:.1f} tok/s, ridge {mine:.1f}")

    shape = "smollm2" if small else "qwen2_5_0_5b"
    share, probe, step = share_of_probe(ridge, args.repeats)
    if not small:
        figure("cpu_decode_share_of_probe", share, "share", ">= 0.85", f"read probe {probe / 1e9:.1f} GB/s, {1 / step:.1f} tok/s")
    over_peer(f"cpu_decode_batch1_over_llama_cpp_{shape}", "decode 1 16 24", ">= 1.25")
    over_peer(f"cpu_prefill512_over_llama_cpp_{shape}", "prefill 512", ">= 1.2")
    if small:
        over_peer("cpu_decode_batch8_over_llama_cpp_smollm2", "decode 8 32 12", ">= 1.8")
        over_peer("cpu_decode_batch32_over_llama_cpp_smollm2", "decode 32 32 8", ">= 1.8")
        figure("cpu_start_to_first_token", start_to_first_token(args.smollm2, args.repeats), "s", "<= 1", "")
    else:
        figure("cpu_context4096_cost_over_kv_bytes", long_context(ridge, args.repeats), "ratio", "<= 1.15",
               "(step at 4,096 - step at 16) / (KV bytes / read probe)")
    if args.headline:
        words = ["\"$(deploy/fetch-model.sh)\"" if word.endswith(".gguf") else word for word in sys.argv[1:]]
        write_headline(re.search(r"cpu: (.*) \(", ridge.about["device"]).group(1), "bench/peers/compare_llama_cpp.py " + " ".join(words), figures)


main()
