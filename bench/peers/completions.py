#!/usr/bin/env python3
"""Replays a frozen workload against a server with OpenAI-style completions (vLLM, llama.cpp, ...) and records what it did.

usage: bench/peers/completions.py --url http://127.0.0.1:8000 --workload FILE --prompts FILE --called NAME --out DIR
                                  [--model NAME] [--rate R | --in-flight N] [--text] [--device-name NAME]

The workload and the prompts come from `ridge-bench draw --model ... --out FILE` (prompts: FILE.prompts.json), so that the peer is
asked exactly what the ladder's engines are asked. Requests are sent at their times whatever the server does. Records go to
DIR/NAME/arrivals.csv.gz with the columns of ridge-bench. Needs aiohttp.
"""
import argparse
import asyncio
import collections
import csv
import gzip
import io
import importlib.util
import json
import pathlib
import re
import socket
import sys
import time
import urllib.parse
import uuid
import zlib

COLUMNS = ["schema", "bench_id", "sweep_id", "ridge_version", "commit", "engine", "engine_params", "model", "dtype", "device",
           "device_name", "rate", "last_rate", "in_flight", "max_batch", "seed", "requests", "unserved", "late", "prompt_label",
           "prompt_tokens", "budget", "completion_tokens", "arrival_s", "start_s", "queue_s", "ttft_s", "latency_s", "end"]
CONNECT_S = 5
LATE_S = 0.005
SPIN_S = 0.001


def read_workload(path):
    """(header, requests); an error names file and line."""
    try:
        lines = path.read_text().splitlines()
        header = json.loads(lines[0])
        items = [json.loads(line) for line in lines[1:] if line]
    except (OSError, IndexError, ValueError) as error:
        sys.exit(f"--workload: {path}: {error}")
    if header.get("schema") != "ridge-workload/1" or not items:
        sys.exit(f"--workload: {path}: not a workload of schema ridge-workload/1")
    return header, items


class Request:
    """One request and what became of it; times in seconds from the start of the run."""

    def __init__(self, item, prompt):
        self.item = item
        self.prompt = prompt
        self.arrival_s = item["arrival_s"]
        self.sent_s = None
        self.start_s = None  # where the engine is this process's own
        self.first_s = None
        self.end_s = None
        self.tokens = 0
        self.end = "unsent"
        self.error = ""

    async def run(self, session, url, model, begin):
        self.sent_s = time.perf_counter() - begin
        body = {"model": model, "prompt": self.prompt, "max_tokens": self.item["max_tokens"], "temperature": 0, "seed": 0,
                "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
        try:
            async with session.post(url + "/v1/completions", json=body) as response:
                if response.status != 200:
                    self.end, self.error = f"HTTP {response.status}", (await response.text())[:300]
                    return
                await self.read(response, begin)
        except Exception as error:  # whatever the connection died of is this request's end
            self.end, self.error = type(error).__name__, str(error)
        finally:
            self.end_s = time.perf_counter() - begin

    async def read(self, response, begin):
        chunks, usage = 0, None
        async for line in response.content:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                break
            event = json.loads(data)
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                if choice.get("text"):
                    chunks += 1
                    self.first_s = self.first_s or time.perf_counter() - begin
                if choice.get("finish_reason"):
                    self.end = choice["finish_reason"]
        # Servers that merge tokens into chunks count them in their usage.
        self.tokens = (usage or {}).get("completion_tokens", chunks)


async def replay(requests, url, model, in_flight):
    import aiohttp

    room = asyncio.Semaphore(in_flight or len(requests))
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 20) as session:
        begin = time.perf_counter()

        async def one(request):
            await room.acquire()
            try:
                if in_flight:
                    request.arrival_s = time.perf_counter() - begin
                await request.run(session, url, model, begin)
            finally:
                room.release()

        tasks = []
        for request in requests:
            if not in_flight:
                while (left := request.arrival_s - (time.perf_counter() - begin)) > 0:
                    await asyncio.sleep(left - SPIN_S if left > SPIN_S else 0)
            tasks.append(asyncio.create_task(one(request)))
        await asyncio.gather(*tasks)


def check_server(url):
    """Ends the program where no server listens at `url`, before anything is sent."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            sys.exit(f"--url: {url}: not an address like http://127.0.0.1:8000")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        sys.exit(f"--url: {url}: {error}")
    try:
        socket.create_connection((parts.hostname, port), CONNECT_S).close()
    except OSError as error:
        sys.exit(f"--url: {url}: {error.strerror or error}")


def is_served(request):
    return request.end in ("length", "stop") and request.first_s is not None


def failures(requests):
    """"3 HTTP 503 (first: overloaded), 1 unsent", the most frequent first; "" where all were served."""
    failed = [request for request in requests if not is_served(request)]
    counts = collections.Counter(request.end for request in failed)
    firsts = {request.end: request.error for request in reversed(failed)}
    return ", ".join(f"{count} {end}" + (f" (first: {firsts[end]})" if firsts[end] else "") for end, count in counts.most_common())


def rows(arguments, header, requests):
    served = [is_served(request) for request in requests]
    late = sum(request.sent_s is not None and request.sent_s > request.arrival_s + LATE_S for request in requests)
    common = {"schema": 1, "bench_id": uuid.uuid4().hex[:8], "sweep_id": uuid.uuid4().hex[:8], "ridge_version": "", "commit": "",
              "engine": arguments.called, "engine_params": json.dumps({"workload": header["name"]}), "model": arguments.model,
              "dtype": "float16", "device": "peer", "device_name": arguments.device_name, "rate": f"{arguments.rate or 0:g}",
              "last_rate": 0, "in_flight": arguments.in_flight or 0, "max_batch": 0, "seed": 0, "requests": len(requests),
              "unserved": served.count(False), "late": late}
    for request, ok in zip(requests, served):
        yield common | {
            "prompt_label": request.item["label"], "prompt_tokens": request.item["prompt_tokens"], "budget": request.item["max_tokens"],
            "completion_tokens": request.tokens, "arrival_s": f"{request.arrival_s:.6f}", "start_s": "" if request.start_s is None else f"{request.start_s:.6f}",
            "queue_s": "" if request.start_s is None else f"{request.start_s - request.arrival_s:.6f}",
            "ttft_s": f"{request.first_s - request.arrival_s:.6f}" if ok else "",
            "latency_s": f"{request.end_s - request.arrival_s:.6f}" if ok else "", "end": request.end}


def records_path(arguments):
    return arguments.out / arguments.called / "arrivals.csv.gz"


def check_out(arguments):
    """Ends the program, before anything is sent, where the records could not be added: two passes with one name would be counted as one."""
    if not re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*", arguments.called):
        sys.exit(f"--called: \"{arguments.called}\" is no plain name: letters, digits, . _ - and +, and no dot in front")
    path = records_path(arguments)
    if not path.exists():
        return
    try:
        rows = list(csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode(), newline="")))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        sys.exit(f"--out: {path}: damaged: {error}")
    if rows and list(rows[0]) != COLUMNS:
        sys.exit(f"--out: {path}: its columns are not those of schema 1")
    at = (f"{arguments.rate or 0:g}", str(arguments.in_flight or 0))
    if any((row["rate"], row["in_flight"]) == at for row in rows):
        what = f"with {at[1]} in flight" if arguments.in_flight else f"at {at[0]}/s" if arguments.rate else "at its own times"
        sys.exit(f"--out: {path} has the pass {what} already; take another --out or --called")


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    if not path.exists():
        writer.writeheader()
    writer.writerows(records)
    with gzip.open(path, "ab") as file:
        file.write(text.getvalue().encode())


def requests_of(workload, prompts_file, as_text, rate):
    """(header, requests) of a frozen workload, its times scaled to `rate`."""
    header, items = read_workload(workload)
    origin = str(header.get("origin", ""))
    drawn_at = re.search(r"arrivals at (.*?)/s", origin)  # as `ridge-bench draw` has it
    if rate and (drawn_at and drawn_at[1] != "1" or ", times x " in origin):
        sys.exit(f"--rate: {workload}: its times are not those of 1/s ({origin}): leave --rate out, or draw it with --rates 1")
    try:
        prompts = json.loads(prompts_file.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"--prompts: {prompts_file}: {error}")
    requests = []
    for item in items:
        prompt = prompts.get(item["label"])
        if prompt is None:
            sys.exit(f"--prompts: {prompts_file}: no prompt {item['label']}")
        if as_text and not prompt["text"]:
            sys.exit(f"--text: {prompts_file}: {item['label']} has no text")
        requests.append(Request(item, prompt["text"] if as_text else prompt["ids"]))
        requests[-1].arrival_s /= rate or 1
    return header, requests


def record(arguments, header, requests):
    records = list(rows(arguments, header, requests))
    if not arguments.in_flight and records[0]["late"]:
        sys.exit(f"{records[0]['late']} of {len(records)} requests were sent more than {LATE_S * 1e3:g} ms late: the run measured its "
                 "client and is not recorded")
    if records[0]["unserved"] == len(records):
        sys.exit(f"none of {len(records)} requests was served: {failures(requests)}: the run is not recorded")
    path = records_path(arguments)
    write(path, records)
    print(f"{path}: {len(records)} requests, {records[0]['unserved']} unserved" + (f": {failures(requests)}" if failures(requests) else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--workload", type=pathlib.Path, required=True)
    parser.add_argument("--prompts", type=pathlib.Path, required=True)
    parser.add_argument("--called", required=True, help="what the records call the peer")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--model", default="", help="the model's name at the peer")
    parser.add_argument("--device-name", default="", help="recorded")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--rate", type=float, help="requests a second: the workload's times, scaled from 1/s")
    pace.add_argument("--in-flight", type=int, help="instead of times: so many at once")
    parser.add_argument("--text", action="store_true", help="send prompts as text, for servers that take no ids")
    arguments = parser.parse_args()
    for name in ("rate", "in_flight"):
        if (value := getattr(arguments, name)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')}: must be more than 0")
    if importlib.util.find_spec("aiohttp") is None:
        sys.exit("completions.py: requests are sent with aiohttp, which is not installed")
    check_server(arguments.url)
    header, requests = requests_of(arguments.workload, arguments.prompts, arguments.text, arguments.rate)
    check_out(arguments)
    asyncio.run(replay(requests, arguments.url.rstrip("/"), arguments.model, arguments.in_flight))
    record(arguments, header, requests)


if __name__ == "__main__":
    main()
