"""The adapter for Hugging Face transformers, on stand-ins of known timing for it and for torch.

usage: transformers_peer_test.py
"""
import csv
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
GAP_S = 0.02
FAULTS = []

TORCH = """
import contextlib
float16 = "float16"
inference_mode = contextlib.nullcontext
def tensor(ids, device):
    return ids
def set_default_dtype(dtype):
    assert dtype == "float16"
def device(name):
    assert name == "cuda"
    return contextlib.nullcontext()
"""

# Streams one token every GAP_S, as generate() does: the prompt first, then token by token.
TRANSFORMERS = f"""
import json, os, time
class AutoConfig:
    @classmethod
    def from_pretrained(cls, name):
        return "config of " + name
class AutoModelForCausalLM:
    @classmethod
    def from_pretrained(cls, name, dtype):
        assert name == "a-model" and dtype == "float16"
        return cls()
    @classmethod
    def from_config(cls, config):
        assert config == "config of a-model"
        return cls()
    def to(self, device):
        assert device == "cuda"
        return self
    def eval(self):
        return self
    def generate(self, ids, max_new_tokens, min_new_tokens, do_sample, streamer):
        assert max_new_tokens == min_new_tokens and not do_sample
        with open(os.environ["ASKED"], "a") as file:
            file.write(json.dumps([len(ids[0]), max_new_tokens]) + "\\n")
        streamer.put(ids)
        for token in range(max_new_tokens):
            time.sleep({GAP_S})
            streamer.put(token)
        streamer.end()
"""


def expect(condition, what):
    if not condition:
        FAULTS.append(what)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "torch.py").write_text(TORCH)
        (folder / "transformers.py").write_text(TRANSFORMERS)
        items = [("p16", 16, 3, 0.0), ("p64", 64, 5, 0.02), ("p16", 16, 2, 2.0)]
        lines = [{"schema": "ridge-workload/1", "name": "three", "origin": "by hand"}]
        lines += [{"index": i, "label": label, "prompt_tokens": tokens, "max_tokens": budget, "arrival_s": at}
                  for i, (label, tokens, budget, at) in enumerate(items)]
        (folder / "w.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        (folder / "p.json").write_text(json.dumps({"p16": {"ids": list(range(16)), "text": ""}, "p64": {"ids": list(range(64)), "text": ""}}))
        command = [sys.executable, ROOT / "bench/peers/hf_transformers.py", "--model=a-model", f"--workload={folder}/w.jsonl",
                   f"--prompts={folder}/p.json", f"--out={folder}/out", "--rate=4"]
        for extra, asked in ([], "asked"), (["--random", "--called=random"], "asked again"):
            environment = os.environ | {"PYTHONPATH": name, "ASKED": f"{name}/{asked}"}
            done = subprocess.run(command + extra, env=environment, capture_output=True, text=True)
            expect(done.returncode == 0, done.stderr[-500:])
        expect((folder / "asked again").read_text() == (folder / "asked").read_text() and (folder / "out/random/arrivals.csv.gz").exists(), "made-up weights")
        asked = [json.loads(line) for line in (folder / "asked").read_text().splitlines()]
        expect(asked == [[16, 3], [64, 5], [16, 2]], f"asked: {asked}")
        with gzip.open(folder / "out/transformers/arrivals.csv.gz", "rt", newline="") as file:
            rows = list(csv.DictReader(file))
        first, second, third = rows
        expect([float(row["arrival_s"]) for row in rows] == [0, 0.005, 0.5], "arrivals, scaled to the rate")
        expect([row["completion_tokens"] for row in rows] == ["3", "5", "2"], "tokens")
        expect(GAP_S <= float(first["ttft_s"]) < GAP_S + 0.05 and 3 * GAP_S <= float(first["latency_s"]) < 3 * GAP_S + 0.1, "the first request")
        expect(float(second["queue_s"]) >= 3 * GAP_S - 0.005, "the second waits for the first")
        expect(float(third["queue_s"]) < 0.05, "the third finds it idle")
        expect(all(row["end"] == "length" and row["late"] == "0" for row in rows), "ends")
    print("\n".join(FAULTS) or "transformers are asked and recorded as they should be")
    return 1 if FAULTS else 0


sys.exit(main())
