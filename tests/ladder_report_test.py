"""The ladder from one end to the other on a simulated card: measured, predicted, reported, drawn.

usage: ladder_report_test.py RIDGE_BENCH
"""
import gzip
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BENCH = ROOT / "bench"
FAULTS = []

sys.path.insert(0, str(BENCH))
import ladder_records as records  # noqa: E402


def expect(condition, what):
    if not condition:
        FAULTS.append(what)


def run(*command, code=0):
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    expect(done.returncode == code, f"{command}: exit {done.returncode}: {done.stderr[-500:]}")
    return done.stdout + done.stderr


def ladder(bench, card, out):
    base = [bench, "--model=synthetic:qwen2.5-1.5b", f"--device=simulated:{card}", f"--out={out}"]
    run(*base, "closed", "--engine=cached,flash", "--prompts=p16,p256", "--batch_size=1,4", "--mixed=8", "--runs=2", "--warmup=1")
    run(*base, "arrivals", "--engine=cached,flash", "--requests=40", "--rates=0.5,8")


def helps(bench):
    """Every flag is of a command, and every command's flags are there."""
    def listed(text):
        return set(re.findall(r"^  --([a-z-]+)$", text, re.MULTILINE))

    everything = run(bench, "--help")
    commands = re.findall(r"^  ([a-z-]+) +[a-z]", everything, re.MULTILINE)
    expect(commands == ["ask", "closed", "arrivals", "serve-load", "replay", "draw", "overhead", "parity", "roofline"], f"commands: {commands}")
    of_commands = set().union(*(listed(run(bench, command, "--help")) for command in commands))
    expect(of_commands == listed(everything), f"flags of no command: {of_commands ^ listed(everything)}")
    expect(listed(run(bench, "roofline", "--help")) == {"model", "card", "records", "out", "flagfile"}, "a command's help")


def refusals(bench, folder):
    """What would give wrong figures silently is refused, and the flag is named."""
    base = [bench, "--model=synthetic:qwen2.5-1.5b", "--device=simulated:a10", f"--out={folder}"]
    closed, arrivals = [*base, "closed", "--runs=1", "--warmup=0"], [*base, "arrivals", "--requests=4", "--rates=1"]
    run(*closed, "--new_tokens=8")
    expect("--new_tokens: p16-x1 in " in run(*closed, "--new_tokens=4", code=1), "other tokens")
    expect("--launch: p16-x1 in " in run(*closed, "--new_tokens=8", "--launch=stream", code=1), "another choice")
    expect("1 runs are on record" in run(*closed, "--new_tokens=8"), "says what it keeps")
    run(*arrivals)
    expect("1/s: on record, not measured again" in run(*arrivals), "says which pass it keeps")
    expect("--requests: the pass at 1/s" in run(*arrivals, "--requests=5", code=1), "other requests")
    expect("--runs: is not a flag of arrivals" in run(*arrivals, "--runs=2", code=1), "another command's flag")
    expect("--source: nowhere.txt: no such file" in run(*closed, "--source=nowhere.txt", code=1), "names the source's flag")
    elsewhere = subprocess.run([*map(str, closed), "--prompts=p64"], cwd=folder, capture_output=True, text=True)
    expect(elsewhere.returncode == 0, f"finds the source from any folder: {elsewhere.stderr[-300:]}")
    nobody = run(bench, "serve-load", "--target=127.0.0.1:1", f"--out={folder}", code=1)
    expect("UNAVAILABLE: --target: 127.0.0.1:1: " in nobody, f"a service that is not there: {nobody}")
    # A run that older versions measured twice would be counted as one batch.
    rows = folder / "ridge" / "runs.csv.gz"
    with gzip.open(rows, "rt") as file:
        header, first = file.readline(), file.readline()
    with gzip.open(rows, "wt") as file:
        batch = first.split(",p16,16,8,1,")[1].split(",")[0]
        file.write(header + first + first.replace(batch, "another"))
    expect(f"run 0 of p16-x1 is there more than once (" in run(sys.executable, BENCH / "report.py", "write", folder, code=1), "a run twice")


def replays(bench, folder):
    """Recorded traces at their own times."""
    base = [bench, "replay", "--model=synthetic:qwen2.5-1.5b", "--device=simulated:h200", "--time_scale=0.1", "--most_tokens=32768"]
    for name in ("mooncake.jsonl", "burstgpt.csv"):
        kind = name.split(".")[0]
        out = run(*base, f"--{kind}={ROOT / 'tests/golden/traces' / name}", f"--out={folder / kind}")
        expect("at its own times: served " in out and "0 unserved" in out, f"{kind}: {out}")
    expect("--workload: required" in run(bench, "replay", "--model=x", code=1), "names what is missing")


def golden(bench, folder):
    """Published token ids beside measured ones, as series.sh compares them: where they part, and by how much."""
    model = ["--model", ROOT / "tests/golden/tiny-qwen2", "--device", "cpu"]
    run(bench, "closed", *model, "--engine=cached", "--prompts=p16,p64", "--new_tokens=8", "--runs=1", "--warmup=0", f"--out={folder}")
    with gzip.open(folder / "cached/runs.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    outputs = {row["prompt_label"]: {"prompt_tokens": row["prompt_tokens"], "token_ids": row["token_ids"]} for row in rows}
    parity = [bench, "parity", *model, f"--a={folder / 'cached'}", f"--b={folder / 'golden'}"]
    (folder / "golden.json").write_text(json.dumps(outputs))
    run(sys.executable, BENCH / "report.py", "golden", folder / "golden.json", folder / "golden")
    expect("2 of 2 outputs are identical" in run(*parity), "equal tokens")
    outputs["p64"]["token_ids"][5] ^= 1
    (folder / "golden.json").write_text(json.dumps(outputs))
    run(sys.executable, BENCH / "report.py", "golden", folder / "golden.json", folder / "golden")
    found = run(*parity, code=1)
    expect(re.search(r"p64-x1, sequence 0: token 5 is the first that differs: logits -?[\d.e-]+ and -?[\d.e-]+, [\d.e-]+ apart", found), f"first difference: {found}")


def story(bench, folder):
    """The whole ladder, small, in two halves and gone on with, and the page that is written from it."""
    out, page = folder / "whole", folder / "ladder.md"
    ladder = [BENCH / "ladder.sh", "--model", "synthetic:qwen2.5-1.5b", "--device", "simulated:h200", "--size", "quick", "--out", out,
              "--bin", pathlib.Path(bench).parent]
    for part in ("a", "b", "all"):
        expect("== all done" in run(*ladder, "--part", part), f"part {part} ends")
    expect("batches-ridge" not in run(*ladder), "what was measured is not measured again")
    expect("is not there; build first" in run(*ladder, "--bin", folder, code=1), "names missing programs")
    expect("holds a ladder of" in run(*ladder, "--device", "simulated:a10", code=1), "a folder has one ladder")
    few = run(*ladder, "--out", folder / "few", "--only", "^goodput-|mixed-flash")
    expect(re.findall(r"^== ([a-z0-9-]+) \(", few, re.MULTILINE) == ["goodput-flash", "goodput-ridge", "mixed-flash"], f"only some tasks: {few[-300:]}")
    expect("--services: maybe" in run(*ladder, "--services", "maybe", code=1), "names what is no choice")
    page.write_text("".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("parts", "engines", "predictions", "cpu")))
    run(sys.executable, BENCH / "report.py", "predict", out, out)
    run(sys.executable, BENCH / "story.py", page, out, "--cpu", out)
    rows = {line.split(" | ")[1]: line for line in page.read_text().splitlines() if line.startswith("| ") and line.count(" | ") == 4}
    expect(rows["Every engine gives naive's tokens"].endswith("made up |  |"), "a simulated card's tokens are not compared")
    # Quick runs have 8 tokens and no prompt of 4,096.
    expect(rows["Without a cache every token is computed again"].endswith("| not measured |  |"), "says what was not measured")
    expect("| goodput/ridge | 1 | 0 | 0 |" in page.read_text(), "goodput is predicted")
    # Two engines at three contexts, with three figures each; a pass that takes no time in Submit has no launch's cost.
    expect("| a pass over one token | 18 | 0 | 0 |" in page.read_text(), "the cost of a pass is predicted")
    run(sys.executable, BENCH / "report.py", "write", out)
    prediction = folder / "known/goodput/ridge/prediction.json"
    prediction.parent.mkdir(parents=True)
    prediction.write_text('{"from": "a model", "goodput_per_s": 1.0}')
    run(*ladder, "--out", folder / "known", "--only", "^goodput-", "--commit", "abc1234")
    shutil.copytree(out / "naive", folder / "known" / "naive")
    run(sys.executable, BENCH / "report.py", "write", folder / "known")
    expect(re.search(r"\| ridge \| [\d.]+ \| 1.0 miss \| [\d.]+ \|", (folder / "known/LADDER.md").read_text()), "goodput's prediction stays, and is graded")
    figure, = json.loads((folder / "known" / "headline.json").read_text())
    expect(figure["baseline"].startswith("flash in one process, same ladder: "), f"simulated services are none: {figure}")
    expect(figure["name"] == "goodput_ridge_over_flash" and figure["commit"] == "abc1234" and 0.5 < figure["value"] < 2, f"headline: {figure}")
    whole = (out / "LADDER.md").read_text()
    expect("## Controls" in whole and "chunk-128/chunked, chunk-512/chunked" in whole, "controls have tables, and say who predicted them")
    expect(re.search(r"\| cached \| 256 \| \d+ \| \d+ hit \|", whole), "a pass's cost beside its prediction")
    expect("uncommitted; records in commit uncommitted" in whole, "prediction and records name their commits")


def main():
    bench = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        ladder(bench, "a10-series", folder / "expected")
        device = folder / "device"
        run(sys.executable, BENCH / "report.py", "predict", folder / "expected", device)
        prediction = json.loads((device / "flash" / "prediction.json").read_text())
        expect(set(prediction["closed"]) == {"p16-x1", "p16-x4", "p256-x1", "p256-x4", "mixed-x8"}, "workloads of the prediction")
        expect(set(prediction["open"]) == {"0.5", "8"}, "rates of the prediction")

        ladder(bench, "a10-series", device)
        run(sys.executable, BENCH / "report.py", "write", device)
        page = (device / "flash" / "README.md").read_text()
        # 5 workloads with three figures each and 2 rates with three each, and the simulation repeats itself.
        expect("Grade: 21 of 21 predictions hit, 0 near, 0 missed." in page, "grade of flash")
        again = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1]
        run("bash", "-ec", again.replace("build/release/bin/ridge-bench", str(bench)).replace("build/again", str(folder / "again")))
        for kind in (records.closed, records.open_passes):
            expect(set(kind(folder / "again/flash")) == set(kind(device / "flash")), f"the page's commands measure the same again: {again}")
        beside = run(sys.executable, BENCH / "report.py", "published", device)
        expect("| cached | p256 | 25.1 | " in beside and "| flash | 8 | 5.68 | " in beside, "published figures beside measured ones")
        whole = (device / "LADDER.md").read_text()
        expect("The engines' tokens were not compared: those of a simulated device are made up." in whole, "no tokens to compare")
        expect("| [cached](cached/README.md) |" in whole, "row of cached")

        # A faster card's records against this prediction are misses, and are said to be.
        ladder(bench, "h200", folder / "other")
        (folder / "other" / "flash" / "prediction.json").write_text(json.dumps(prediction))
        run(sys.executable, BENCH / "report.py", "write", folder / "other")
        grade = re.search(r"Grade: (\d+) of 21 .* (\d+) missed", (folder / "other" / "flash" / "README.md").read_text())
        # At half a request a second both cards serve what is offered.
        expect(grade and int(grade[1]) <= 2 and int(grade[2]) >= 15, f"misses: {grade and grade[0]}")

        # A second run finds everything done.
        before = (device / "flash" / "runs.csv.gz").read_bytes()
        ladder(bench, "a10-series", device)
        expect((device / "flash" / "runs.csv.gz").read_bytes() == before, "a complete sweep is not measured again")

        story(bench, folder)
        helps(bench)
        refusals(bench, folder / "refused")
        replays(bench, folder / "traces")
        golden(bench, folder / "golden")

        expect("no such folder" in run(sys.executable, BENCH / "plot.py", folder / "nowhere", code=2)
               if importlib.util.find_spec("matplotlib") else True, "plot names a missing folder")
        if importlib.util.find_spec("matplotlib"):
            run(sys.executable, BENCH / "plot.py", device, "--published", "--weights-ms=5.15")
            drawn = {path.name for path in (device / "figures").glob("*.svg")}
            expect(drawn == {"prompt-length.svg", "batch-size.svg", "arrival-rate.svg", "gaps.svg", "step-budget.svg", "ladder.svg"},
                   f"figures: {drawn}")
        else:
            print("matplotlib is not installed: no figures drawn")
    print("\n".join(FAULTS) or "the ladder is measured, predicted and reported")
    return 1 if FAULTS else 0


sys.exit(main())
