"""Loading beside the rates at which the files can be read: load-bench from the page cache and from the disk, and a small model's start.

  python bench/load/compare.py CHECKPOINT SMOLLM2.gguf [--repeat 3] [--headline]

CHECKPOINT is what bench/load/make_checkpoint.py wrote, SMOLLM2.gguf what deploy/fetch-model.sh prints. Prints every run; with
--headline the medians (of memory the worst) go to bench/results/<processor>/headline.json. Needs build/release.
"""
import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from headline import ROOT, processor, write_headline  # noqa: E402

BIN = ROOT / "build/release/bin"


def load(model, repeat, *flags):
    """What load-bench prints, one dictionary a run. Each is a process of its own, as a worker's start is."""
    runs = []
    for _ in range(repeat):
        out = subprocess.run([BIN / "load-bench", "--model", model, *flags], check=True, capture_output=True, text=True).stdout
        print(out, end="")
        load_rate, read_rate, share = re.search(r"load ([\d.]+) GB/s .*; read in order ([\d.]+) GB/s, share ([\d.]+)", out).groups()
        memory = re.search(r"new memory ([\d.]+) GB/s, share ([\d.]+)", out)
        weights, peak = re.search(r"weights (\d+) MB, peak RSS (\d+) MB", out).groups()
        runs.append({"load": float(load_rate), "read": float(read_rate), "share": float(share), "rss": int(peak) / int(weights),
                     "into_memory": float(memory[1]) if memory else 0, "share_of_memory": float(memory[2]) if memory else 0})
    return runs


def seconds_to_ready(model):
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        begin = time.perf_counter()
        with log.open("w") as out:
            worker = subprocess.Popen([BIN / "ridge-worker", "--model", model, "--listen", "127.0.0.1:0", "--metrics-port", "0", "--device", "cpu",
                                       "--kv-cache-bytes", "64MiB"], stdout=out, stderr=out)
        try:
            while True:
                found = re.search(r"metrics on [\d.]+:(\d+)", log.read_text())
                if found and is_ready(found[1]):
                    return time.perf_counter() - begin
                if worker.poll() is not None or time.perf_counter() - begin > 20:
                    raise SystemExit(log.read_text())
                time.sleep(0.005)
        finally:
            worker.kill()
            worker.wait()


def is_ready(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).status == 200
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("smollm2")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--headline", action="store_true")
    args = parser.parse_args()
    warm, cold = load(args.checkpoint, args.repeat), load(args.checkpoint, args.repeat, "--cold")
    ready = [seconds_to_ready(args.smollm2) for _ in range(args.repeat)]
    print("SmolLM2 ready after", ", ".join(f"{s:.2f} s" for s in ready))
    if not args.headline:
        return

    def median(runs, key):
        return statistics.median(run[key] for run in runs)

    write_headline(processor(), f"bench/load/compare.py CHECKPOINT \"$(deploy/fetch-model.sh)\" --repeat {args.repeat} --headline", [
        ("load_share_of_disk_read", median(cold, "share"), "ratio", ">= 0.7",
         f"one reader in order, page cache dropped, {median(cold, 'read'):.2f} GB/s; load {median(cold, 'load'):.2f} GB/s"),
        ("load_share_of_page_cache_read", median(warm, "share"), "ratio", ">= 0.7",
         f"one reader into one buffer, {median(warm, 'read'):.2f} GB/s; load {median(warm, 'load'):.2f} GB/s"),
        ("load_share_of_read_into_memory", median(warm, "share_of_memory"), "ratio", ">= 0.7",
         f"all threads reading the page cache into new memory, {median(warm, 'into_memory'):.2f} GB/s"),
        ("load_peak_rss_over_weights", max(run["rss"] for run in warm + cold), "ratio", "<= 1.1", "the worst run, mapped pages included"),
        ("smollm2_ready", statistics.median(ready), "s", "<= 1", "process start to /readyz, page cache warm")])


if __name__ == "__main__":
    main()
