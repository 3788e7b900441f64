"""The adapter for completions servers, against a small server of known timing. Skipped without aiohttp, unless
RIDGE_REQUIRE_TOOLS is set.

usage: peers_test.py RIDGE_BENCH
"""
import asyncio
import csv
import gzip
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

if importlib.util.find_spec("aiohttp") is None:
    print("aiohttp is not installed")
    sys.exit(1 if os.environ.get("RIDGE_REQUIRE_TOOLS") else 77)

from aiohttp import web  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
GAP_S = 0.02
FAULTS = []


def expect(condition, what):
    if not condition:
        FAULTS.append(what)


class Server:
    """Answers with one token every GAP_S; refuses every prompt of 64 tokens; remembers what it was asked."""

    def __init__(self):
        self.asked = []

    async def completions(self, request):
        body = await request.json()
        self.asked.append(body)
        if len(body["prompt"]) == 64:
            return web.Response(status=503, text="overloaded")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for token in range(body["max_tokens"]):
            await asyncio.sleep(GAP_S)
            last = token + 1 == body["max_tokens"]
            event = {"choices": [{"text": "x", "finish_reason": "length" if last else None}]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        usage = {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}
        await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
        return response


async def run(*command):
    process = await asyncio.create_subprocess_exec(*map(str, command), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def measure(folder):
    server = Server()
    app = web.Application()
    app.router.add_post("/v1/completions", server.completions)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    items = [("p16", 16, 3, 0.0), ("p64", 64, 3, 0.05), ("p16", 16, 5, 0.1)]
    lines = [{"schema": "ridge-workload/1", "name": "three", "origin": "by hand"}]
    lines += [{"index": i, "label": label, "prompt_tokens": tokens, "max_tokens": budget, "arrival_s": at}
              for i, (label, tokens, budget, at) in enumerate(items)]
    workload, prompts = folder / "w.jsonl", folder / "p.json"
    workload.write_text("\n".join(map(json.dumps, lines)) + "\n")
    prompts.write_text(json.dumps({"p16": {"ids": list(range(16)), "text": "a"}, "p64": {"ids": list(range(64)), "text": "b"}}))
    base = [sys.executable, ROOT / "bench/peers/completions.py", "--url", url, "--workload", workload, "--called", "peer", "--out", folder / "out"]
    code, out = await run(*base, "--prompts", prompts)
    expect(code == 0, f"exit {code}: {out}")
    expect("3 requests, 1 unserved: 1 HTTP 503 (first: overloaded)" in out, f"says what failed: {out}")
    code, out = await run(*(part if part != url else "http://127.0.0.1:1" for part in base), "--prompts", prompts)
    expect(code == 1 and out == "--url: http://127.0.0.1:1: Connection refused\n", f"nobody there: exit {code}: {out}")
    code, out = await run(*(part if part != url else "foo" for part in base), "--prompts", prompts)
    expect(code == 1 and out == "--url: foo: not an address like http://127.0.0.1:8000\n", f"no address: exit {code}: {out}")
    code, out = await run(*base, "--prompts", prompts, "--in-flight", 1)
    expect(code == 0, f"in flight: exit {code}: {out}")
    asked = len(server.asked)
    for origin, code_there in (("mixed; arrivals at 4/s, burstiness 1", 1), ("mixed; arrivals at 1 to 4/s", 1), ("trace.csv, times x 1", 1),
                               ("mixed; arrivals at 1/s, burstiness 1", 0)):
        (folder / "at.jsonl").write_text("\n".join(map(json.dumps, [lines[0] | {"origin": origin}, *lines[1:2]])) + "\n")
        code, out = await run(*base, "--prompts", prompts, "--workload", folder / "at.jsonl", "--rate", 8)
        expect(code == code_there and (code == 0 or "--rate: " in out and "not those of 1/s" in out), f"{origin}: exit {code}: {out}")
    asked += 1
    for again, what in (((), "at its own times"), (("--in-flight", 1), "with 1 in flight")):
        code, out = await run(*base, "--prompts", prompts, *again)
        expect(code == 1 and f"has the pass {what} already; take another --out or --called" in out, f"twice: exit {code}: {out}")
    code, out = await run(*base, "--prompts", prompts, "--called", "../peer")
    expect(code == 1 and '--called: "../peer" is no plain name' in out, f"a path for a name: exit {code}: {out}")
    damaged = folder / "damaged/peer/arrivals.csv.gz"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes((folder / "out/peer/arrivals.csv.gz").read_bytes()[:-9])
    code, out = await run(*base, "--prompts", prompts, "--out", folder / "damaged")
    expect(code == 1 and f"--out: {damaged}: damaged: " in out, f"damaged: exit {code}: {out}")
    expect(len(server.asked) == asked, "what is refused sends nothing")
    prompts.write_text("{}")
    code, out = await run(*base, "--prompts", prompts)
    expect(code == 1 and "no prompt p16" in out, f"missing prompt: {out}")
    await runner.cleanup()
    return server


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server = asyncio.run(measure(folder))
        expect([len(body["prompt"]) for body in server.asked[:3]] == [16, 64, 16], "prompts as ids, in order")
        expect(all(body["ignore_eos"] and body["temperature"] == 0 for body in server.asked), "greedy, to the end")
        with gzip.open(folder / "out/peer/arrivals.csv.gz", "rt", newline="") as file:
            header = file.readline()
            file.seek(0)
            rows = list(csv.DictReader(file))
        expect(len(rows) == 7, f"{len(rows)} rows")
        first, refused, last = rows[:3]
        expect(refused["end"] == "HTTP 503" and refused["latency_s"] == "" and refused["unserved"] == "1", "a refused request")
        for row, budget in ((first, 3), (last, 5)):
            expect(row["completion_tokens"] == str(budget) and row["end"] == "length", "an answered request")
            expect(GAP_S <= float(row["ttft_s"]) < GAP_S + 0.05, f"TTFT {row['ttft_s']}")
            expect(budget * GAP_S <= float(row["latency_s"]) < budget * GAP_S + 0.1, f"latency {row['latency_s']}")
        expect(float(rows[5]["arrival_s"]) > 3 * GAP_S and rows[5]["in_flight"] == "1", "one at a time")

        # The columns are those that ridge-bench writes, so that its report and figures take both.
        subprocess.run([sys.argv[1], "arrivals", "--model=synthetic:qwen2.5-1.5b", "--device=simulated:a10", "--requests=1", f"--out={folder}/own"],
                       cwd=ROOT, check=True, capture_output=True)
        with gzip.open(folder / "own/ridge/arrivals.csv.gz", "rt", newline="") as file:
            expect(file.readline() == header, "columns")
    print("\n".join(FAULTS) or "the adapter asks and records what it should")
    return 1 if FAULTS else 0


sys.exit(main())
