"""What the ladder's pages say of records written by hand: only what was measured and compared, and one line where an input is damaged."""
import csv
import gzip
import io
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
REPORT, STORY, PLOT = (ROOT / "bench" / f"{name}.py" for name in ("report", "story", "plot"))
FAULTS = []

sys.path.insert(0, str(ROOT / "bench"))
import ladder_records as records  # noqa: E402


def expect(condition, what):
    if not condition:
        FAULTS.append(what)


def run(*command, code=0, env=None):
    done = subprocess.run([sys.executable, *(str(part) for part in command)], cwd=ROOT, capture_output=True, text=True, env=env)
    expect(done.returncode == code, f"{command}: exit {done.returncode}: {done.stdout[-300:]}{done.stderr[-500:]}")
    return done.stdout + done.stderr


def refused(what, *command, env=None):
    """Ends with 1 and one line that holds `what`."""
    said = run(*command, code=1, env=env)
    expect(len(said.splitlines()) == 1 and what in said, f"one line with {what}: {said[-500:]}")


def store(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def rows_of(name, rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, sorted(records.COLUMNS[name]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def context(engine, device="cpu", model="tiny", engine_params="{}"):
    return {"engine": engine, "engine_params": engine_params, "model": model, "dtype": "float32", "device": device, "device_name": f"{device}: a device",
            "ridge_version": "0.1.0", "commit": "abc1234"}


def closed(root, engine, prompts, ids=(1, 2), itl_ms=2.0, **other):
    """One run of each prompt alone."""
    sha = "".join(f"{token:04x}" for token in ids)[:8]
    rows = [context(engine, **other) | {"is_warmup": "False", "workload": f"{prompt}-x1", "run_index": 0, "batch_id": prompt, "completion_tokens": len(ids),
                                        "total_s": 0.1, "decode_s": 0.05, "peak_mem_bytes": "", "prompt_label": prompt, "prompt_tokens": prompt[1:],
                                        "ttft_s": 0.05, "itl_p50_ms": itl_ms, "itl_p95_ms": itl_ms, "notes": "steps 2, rows 17", "sequence_index": 0,
                                        "output_sha8": sha} for prompt in prompts]
    store(root / engine / "runs.csv.gz", rows_of("runs.csv.gz", rows))
    lines = [{"workload": row["workload"], "prompt_label": row["prompt_label"], "prompt_tokens": 16, "output_sha8": sha, "token_ids": list(ids),
              "is_warmup": False, "token_gaps_us": [0, 2000]} for row in rows]
    store(root / engine / "runs.jsonl.gz", "".join(json.dumps(line) + "\n" for line in lines))


def arrivals(root, engine, rates=(4,), gap_s=0.01, requests=(("p16", 8), ("p64", 8)), **other):
    rows = [context(engine, **other) | {"in_flight": 0, "sweep_id": f"{rate}", "last_rate": 0, "rate": rate, "latency_s": 0.1, "arrival_s": i / rate, "queue_s": 0,
                                        "ttft_s": 0.02, "completion_tokens": budget, "end": "length", "prompt_label": label, "budget": budget, "seed": 0}
            for rate in rates for i, (label, budget) in enumerate(requests)]
    store(root / engine / "arrivals.csv.gz", rows_of("arrivals.csv.gz", rows))
    spread = {"p50": gap_s, "p99": gap_s, "worst": gap_s}
    lines = [{"rate": rate, "in_flight": 0, "last_rate": 0, "itl_s": spread, "disturbance_s": spread, "disturbed_over_150_ms": 0, "notes": ""} for rate in rates]
    store(root / engine / "passes.jsonl.gz", "".join(json.dumps(line) + "\n" for line in lines))


def ladder_page(root):
    run(REPORT, "write", root)
    return (root / "LADDER.md").read_text()


def story_rows(root):
    """Claim -> the cells after it, of the page that story.py writes."""
    page = root / "STORY.md"
    page.write_text("".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("parts", "engines", "predictions")))
    run(STORY, page, root)
    return {cells[1]: cells[2:] for cells in (line.strip("| ").split(" | ") for line in page.read_text().splitlines()) if len(cells) >= 4}


def comparisons(folder):
    """No sentence about tokens without a comparison, and who was left out of it."""
    same = "Every engine gives naive's tokens"
    closed(folder / "one", "ridge", ["p16"])
    expect("were not compared: no two engines ran the same sequences." in ladder_page(folder / "one"), "one engine only")
    arrivals(folder / "open", "flash")
    arrivals(folder / "open", "ridge")
    expect("were not compared" in ladder_page(folder / "open"), "arrivals only")
    for engine in ("naive", "ridge"):
        closed(folder / "simulated", engine, ["p16"], device="simulated:h200")
    expect("were not compared: those of a simulated device are made up." in ladder_page(folder / "simulated"), "simulated")
    expect(story_rows(folder / "simulated")[same][1].startswith("not compared"), "simulated, in the story")
    closed(folder / "disjoint", "naive", ["p16"])
    closed(folder / "disjoint", "ridge", ["p64"])
    expect("were not compared" in ladder_page(folder / "disjoint"), "disjoint prompts")
    expect(story_rows(folder / "disjoint")[same][1].startswith("not compared"), "disjoint prompts, in the story")
    expect("naive gave" not in (folder / "disjoint/ridge/README.md").read_text(), "nothing to say of 0 sequences")
    some = folder / "some"
    for engine in ("naive", "cached"):
        closed(some, engine, ["p16", "p64"])
    arrivals(some, "ridge")
    expect("The tokens of 2 sequences that two engines or more ran are the same in all of them (2 engines). Not compared: ridge." in ladder_page(some), "counts")
    found = story_rows(some)[same]
    expect(found[1].startswith("2 of 2 sequences, warm-ups too; not compared: batched") and found[2].startswith("in part"), f"in part: {found}")
    (some / "cached/runs.jsonl.gz").unlink()
    expect(story_rows(some)[same][1].startswith("not compared"), "no token ids")
    closed(some, "cached", ["p16", "p64"], ids=(1, 3))
    expect("Of 2 sequences that two engines or more ran, outputs differ: p16-x1: [['naive'], ['cached']]" in ladder_page(some), "outputs differ")


def damages(folder):
    """One line with the file's name and exit 1 from every script."""
    root, page = folder / "damaged", folder / "page.md"
    page.write_text("".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("parts", "engines", "predictions")))
    whole = rows_of("runs.csv.gz", [])

    def cut(path):
        path.write_bytes(path.read_bytes()[:-12])

    harm = [("runs.csv.gz", cut), ("runs.csv.gz", lambda path: path.write_text("no gzip")), ("runs.csv.gz", lambda path: path.write_bytes(b"")),
            ("runs.csv.gz", lambda path: store(path, whole)), ("runs.csv.gz", lambda path: store(path, "a,b\n1,2\n")),
            ("runs.csv.gz", lambda path: store(path, gzip.decompress(path.read_bytes()).decode()[:-9])),
            ("runs.jsonl.gz", cut), ("runs.jsonl.gz", lambda path: store(path, '{"workload": "p16-x1", "pro')), ("runs.jsonl.gz", lambda path: store(path, "{}\n")),
            ("passes.jsonl.gz", cut), ("passes.jsonl.gz", pathlib.Path.unlink), ("arrivals.csv.gz", cut),
            ("arrivals.csv.gz", lambda path: store(path, gzip.decompress(path.read_bytes()).decode().replace("0.02", "0.0x"))),
            ("prediction.json", lambda path: path.write_text("{}")), ("prediction.json", lambda path: path.write_text("{"))]
    for name, spoil in harm:
        for engine in ("naive", "cached"):
            closed(root, engine, ["p16", "p64"])
            arrivals(root, engine)
            (root / engine / "prediction.json").write_text('{"from": "a model", "closed": {}, "open": {}}')
        path = root / "cached" / name
        spoil(path)
        refused(f"{path}: ", REPORT, "write", root)
        refused(f"{path}: ", STORY, page, root)
    (root / "cached" / "prediction.json").unlink()
    empty = folder / "empty"
    empty.mkdir()
    refused(f"{empty}: no records", REPORT, "write", empty)
    refused(f"{empty}: no records", REPORT, "predict", empty, folder / "expected")
    refused(f"{empty}: no records", STORY, page, empty)
    refused("nowhere.md: No such file", STORY, folder / "nowhere.md", root)
    (folder / "bare.md").write_text("# a page\n")
    closed(folder / "sound", "naive", ["p16"])
    refused("bare.md: no place for the table parts", STORY, folder / "bare.md", folder / "sound")
    for text in ("", "{", "[]", "{}", '{"p16": {"token_ids": []}}'):
        (folder / "golden.json").write_text(text)
        refused(f"{folder / 'golden.json'}: ", REPORT, "golden", folder / "golden.json", folder / "golden")
    refused("nothing.json: No such file", REPORT, "golden", folder / "nothing.json", folder / "golden")
    blocked = folder / "blocked"
    blocked.mkdir()
    (blocked / "matplotlib.py").write_text("raise ModuleNotFoundError\n")
    refused("figures need matplotlib", PLOT, root, env={"PYTHONPATH": str(blocked)})
    (blocked / "matplotlib.py").unlink()
    (blocked / "matplotlib").mkdir()  # as much of it as is asked before there is something to draw
    (blocked / "matplotlib/__init__.py").write_text("def use(_): pass\n")
    (blocked / "matplotlib/pyplot.py").write_text("def get_cmap(_): return str\n")
    refused(f"{empty}: no records", PLOT, empty, env={"PYTHONPATH": str(blocked)})


def models(folder):
    """Two models are no ladder; a service and a peer name theirs as they like."""
    root = folder / "models"
    closed(root, "naive", ["p16"])
    arrivals(root, "service", device="service", model="m")
    arrivals(root, "peer", device="peer", model="n")
    (root / "peer/passes.jsonl.gz").unlink()
    ladder_page(root)
    closed(root / "controls" / "slots-8", "ridge", ["p16"], model="other")
    refused("two models are no ladder: tiny in ", REPORT, "write", root)
    (root / "controls/slots-8/ridge/runs.csv.gz").unlink()
    closed(root, "ridge", ["p16"], model="other")
    refused("two models are no ladder: tiny in ", REPORT, "write", root)
    refused("two models are no ladder: tiny in ", REPORT, "predict", root, folder / "of-two")


def trends(folder):
    """Claims name the points that there are, and one point is no trend."""
    root = folder / "trends"
    flat, chunk = "With a cache a token costs the same after any prompt", "The chunk is the price of a gap"
    closed(root, "cached", ["p64"])
    arrivals(root / "controls" / "chunk-128", "chunked")
    found = story_rows(root)
    expect(found[flat][1:] == ["2.00 ms a token at p64, no other prompt"], f"one prompt: {found[flat]}")
    expect(found[chunk][1:] == ["worst gap by chunk, in tokens: 128: 10 ms, no other chunk"], f"one chunk: {found[chunk]}")
    closed(root, "cached", ["p256", "p64"])
    arrivals(root / "controls" / "chunk-512", "chunked", gap_s=0.02)
    found = story_rows(root)
    expect(found[flat][1:] == ["2.00 to 2.00 ms a token from p64 to p256", "yes"], f"two prompts: {found[flat]}")
    expect(found[chunk][1:] == ["worst gap by chunk, in tokens: 128: 10 ms, 512: 20 ms", "yes"], f"two chunks: {found[chunk]}")


def goodput(folder):
    """Says which way the requests of a search went, as its records have it, and compares nothing that went two ways."""
    router = {"device": "service", "engine_params": '{"through":"worker and router"}'}
    worker = {"device": "service", "engine_params": '{"through":"a worker"}'}
    old = {"device": "service"}
    for name, ways, told in (("services", (router, router), "through worker and router"), ("worker", (worker, worker), "through a worker"),
                             ("old", (old, old), "through a service"), ("process", ({}, {}), "in one process"),
                             ("peers", ({"device": "peer"}, {"device": "peer"}), "through a server of its own"),
                             ("both", ({}, router), None), ("two", (worker, router), None)):
        root = folder / name
        closed(root, "naive", ["p16"])
        for engine, way in zip(("flash", "ridge"), ways):
            arrivals(root / "goodput", engine, rates=(4, 64), **way)
        page, claim = ladder_page(root), story_rows(root)["Goodput: p99 TTFT <= 500 ms, p99 ITL <= 25 ms"][1]
        headline = root / "headline.json"
        if told is None:
            expect(not headline.exists(), "two ways are no ratio")
            expect("but one of them " in claim, f"two ways in the story: {claim}")
            continue
        expect(page.count(f"| {told} |") == 2, f"LADDER.md: {told}")
        expect(claim.startswith(f"{told}, offered flash 4.0"), f"the story: {claim}")
        expect(json.loads(headline.read_text())[0]["baseline"].startswith(f"flash {told}, same ladder: 4.0 "), f"{headline.read_text()}")


def share_of_what_came(folder):
    """What is served counts against what came a second, as ridge-bench has it, not against the nominal rate."""
    root = folder / "share"
    for arrived, met in ((4, 8.0), (64, 0.0)):  # 20 requests at 8/s nominal, that came at half of it, or far faster than they were served
        arrivals(root, "ridge", rates=(8,), requests=(("p16", 8),) * 20)
        rows = records.read_csv(root / "ridge/arrivals.csv.gz")
        for i, row in enumerate(rows):
            row |= {"arrival_s": i / arrived, "latency_s": 0.1 + (0 if arrived == 4 else 5 * i / arrived)}
        store(root / "ridge/arrivals.csv.gz", rows_of("arrivals.csv.gz", rows))
        expect(records.goodput(root / "ridge")[0] == met, f"came at {arrived}/s: {records.goodput(root / 'ridge')}")
    # Half of the clients of the slower one leave, as they were told to.
    for i, row in enumerate(rows):
        row |= {"arrival_s": i / 4, "latency_s": 0.1 if i % 2 == 0 else "", "end": "length" if i % 2 == 0 else "cancelled"}
    store(root / "ridge/arrivals.csv.gz", rows_of("arrivals.csv.gz", rows))
    expect(records.goodput(root / "ridge")[0] == 8.0, f"who leaves is not to be served: {records.goodput(root / 'ridge')}")


def predictions(folder):
    """A prediction with records beside it stays, unless it is to be replaced."""
    expected, device = folder / "expected", folder / "predicted"
    closed(expected, "naive", ["p16"])
    kept = device / "naive/prediction.json"
    run(REPORT, "predict", expected, device)
    closed(expected, "naive", ["p16"], itl_ms=3.0)
    run(REPORT, "predict", expected, device)  # nothing measured yet
    before = kept.read_text()
    closed(device, "naive", ["p16"])
    run(REPORT, "predict", expected, device)  # the same again
    closed(expected, "naive", ["p16"], itl_ms=4.0)
    closed(expected, "cached", ["p16"])
    refused(f"{kept}: predicted otherwise", REPORT, "predict", expected, device)
    expect(kept.read_text() == before and not (device / "cached").exists(), "a refused prediction writes nothing")
    run(REPORT, "predict", expected, device, "--replace")
    expect(json.loads(kept.read_text())["closed"]["p16-x1"]["itl_p50_ms"] == 4.0, "replaced")


def commands(folder):
    """What a page says to type: the right command for a service, and what arrived."""
    root = folder / "typed"
    items = [json.loads(line) for line in (ROOT / "bench/traces/mixed-tiny-8.jsonl").read_text().splitlines()[1:]]
    tiny = [(item["label"], item["max_tokens"]) for item in items]
    closed(root, "naive", ["p64", "p16"])
    arrivals(root, "ridge", rates=(4, 8), requests=tiny)
    arrivals(root, "front", rates=(4,), device="service", requests=(("p1024", 256), ("p16", 192)))
    arrivals(root, "behind", rates=(4,), device="service", engine_params='{"through":"worker and router"}')
    arrivals(root, "other", rates=(4,), requests=(("p7", 3),))
    arrivals(root, "peer", device="peer")
    ladder_page(root)
    pages = {engine: (root / engine / "README.md").read_text() for engine in ("naive", "ridge", "front", "behind", "other", "peer")}
    bench = "\nbuild/release/bin/ridge-bench"
    own = '--model "$model" --device cpu'
    expect(f"\nmodel=PATH  # of tiny{bench} closed {own} --engine naive --out build/again --prompts p16,p64 --batch_size 1 --new_tokens 2\n" in pages["naive"], pages["naive"])
    expect(f"{bench} arrivals {own} --engine ridge --out build/again --rates 4,8 --workload bench/traces/mixed-tiny-8.jsonl\n" in pages["ridge"], pages["ridge"])
    expect(f"{bench} serve-load --target 127.0.0.1:50050 --called front --out build/again --rates 4 --requests 2\n" in pages["front"], pages["front"])
    expect("\n# a service with tiny at 127.0.0.1:50050, " in pages["front"], pages["front"])
    expect("\n# worker and router with tiny at 127.0.0.1:50050, " in pages["behind"], pages["behind"])
    expect(" --called behind --through 'worker and router' --out build/again --rates 4 " in pages["behind"], pages["behind"])
    expect('\nworkload=PATH  #' in pages["other"] and '--rates 4 --workload "$workload"\n' in pages["other"], pages["other"])
    expect("Again" not in pages["peer"], "a peer is measured by a program of its own")


def peers(folder):
    """The adapter for completions servers names what it lacks before it sends anything."""
    lacking = folder / "lacking"
    lacking.mkdir()
    code = "import importlib.util, runpy, sys; importlib.util.find_spec = lambda name: None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    refused("sent with aiohttp, which is not installed", "-c", code, ROOT / "bench/peers/completions.py", "--url", "http://127.0.0.1:1",
            "--workload", ROOT / "bench/traces/mixed-tiny-8.jsonl", "--prompts", "p.json", "--called", "peer", "--out", folder / "peers")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        comparisons(folder)
        damages(folder)
        models(folder)
        trends(folder)
        goodput(folder)
        share_of_what_came(folder)
        predictions(folder)
        commands(folder)
        peers(folder)
    print("\n".join(FAULTS) or "the pages say what was measured")
    return 1 if FAULTS else 0


sys.exit(main())
