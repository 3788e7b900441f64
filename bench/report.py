#!/usr/bin/env python3
"""Predictions and reports of the ladder.

usage: bench/report.py predict SIMULATED bench/results/DEVICE [--replace]
                                                                 keep what the cost model expects, before anything is measured
       bench/report.py write bench/results/DEVICE                README.md of each engine, and LADDER.md of all
       bench/report.py published bench/results/DEVICE            the series' published figures beside the measured ones
       bench/report.py golden FILE FOLDER                         published token ids as records, for `ridge-bench parity`

SIMULATED holds records of the same workloads on `--device simulated:CARD`. `write` compares: within 10 % of the prediction is a
hit, within 25 % near, anything else a miss. A prediction that has records beside it is kept: --replace writes another. It names the commits that hold prediction and records, so that a reader sees which
came first.
"""
import argparse
import gzip
import hashlib
import json
import pathlib
import re
import subprocess
import sys

import again
import headline
import ladder_records as records

CLOSED_KEYS = {"ttft_ms": "TTFT, ms", "itl_p50_ms": "ITL p50, ms", "tokens_per_s": "tokens/s"}
OPEN_KEYS = {"served_per_s": "served/s", "ttft_p50_s": "TTFT p50, s", "itl_p50_ms": "ITL p50, ms"}
PASS_KEYS = {"pipelined_us": "pipelined, us", "serialized_us": "serialized, us", "launches": "launches"}
HIT, NEAR = 0.10, 0.25


def figures_of(folder):
    """What is predicted and compared."""
    closed = {name: {key: figures[key] for key in CLOSED_KEYS} for name, figures in records.closed(folder).items()}
    passes = {f"{rate:g}": {key: figures.get(key, 0.0) for key in OPEN_KEYS} for rate, figures in records.open_passes(folder).items()}
    return {"closed": closed, "open": passes}


def all_folders(root):
    """(folder's path within the root, folder) of every engine, those of the controls and of the goodput search too."""
    return [(path.relative_to(root), path) for part in [root, *records.control_roots(root)] for _, path in records.engine_folders(part)]


def grade(predicted, measured):
    if predicted <= 0 or measured <= 0:
        return "-"
    off = abs(measured / predicted - 1)
    return "hit" if off <= HIT else "near" if off <= NEAR else "miss"


def commit_of(path):
    """The last commit that touched a file, shortened; "uncommitted" where there is none."""
    run = subprocess.run(["git", "log", "-n1", "--format=%h", "--", path.name], cwd=path.parent, capture_output=True, text=True)
    return run.stdout.strip() or "uncommitted"


def has_records(folder):
    return any(found for pattern in ("runs.csv.gz", "arrivals.csv.gz", "overhead-*.md") for found in folder.glob(pattern))


def predict(simulated, device_root, replace):
    passes = records.overhead(simulated)
    if records.engine_folders(simulated) or not passes:
        records.ladder_folders(simulated)  # refuses two models
    folders = all_folders(simulated)
    predictions = {}
    for name, folder in folders:
        prediction = {"from": records.context(folder)["device_name"], **figures_of(folder)}
        if name.parts[0] == "goodput":
            prediction = {"from": prediction["from"], "goodput_per_s": records.goodput(folder)[0]}
        predictions[device_root / name / "prediction.json"] = json.dumps(prediction, indent=1) + "\n"
    if passes:
        expected = {engine: {str(context): {key: figures[key] for key in PASS_KEYS} for context, figures in found.items()}
                    for engine, found in passes.items()}
        prediction = {"from": records.overhead_device(simulated), "passes": expected}
        predictions[device_root / "overhead-prediction.json"] = json.dumps(prediction, indent=1) + "\n"
    others = [path for path, text in predictions.items() if path.exists() and path.read_text() != text and has_records(path.parent)]
    if others and not replace:
        sys.exit(f"{others[0]}: predicted otherwise before the records beside it were made ({len(others)} such); --replace replaces it")
    for path, text in predictions.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)


def table(header, rows):
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *("| " + " | ".join(row) + " |" for row in rows)])


def figure(value):
    return f"{value:.4g}" if value < 1e4 else f"{value:,.0f}"


def compared(keys, measured, predicted):
    """A cell pair for each key: the figure, and the prediction with its grade."""
    cells = []
    for key in keys:
        cells.append(figure(measured[key]) if key in measured else "")
        cells.append(f"{figure(predicted[key])} {grade(predicted[key], measured[key])}" if predicted and key in measured else "")
    return cells


def header_of(first, keys):
    return first + [cell for name in keys.values() for cell in (name, "predicted")]


def size_key(name):
    prompt, _, size = name.partition("-x")
    return (prompt, int(size)) if prompt.startswith("mixed") else (f"{int(prompt[1:]):08}", int(size))


def parity_line(folder):
    """How many sequences have the tokens of the ladder's first engine; None where none was compared."""
    reference = folder.parent / records.ENGINES[0]
    if folder == reference:
        return None
    same, compared = records.parity(folder, reference)
    if not compared:
        return None
    return f"{same:,} of {compared:,} sequences have the tokens that {records.ENGINES[0]} gave, warm-ups among them."


def prediction_of(folder):
    """What the cost model expected of an engine's records, by kind and name; empty where nothing was predicted."""
    path = folder / "prediction.json"
    found = {"from": "", "closed": {}, "open": {}} | (records.read_json(path) if path.exists() else {})
    return found if found["from"] or not path.exists() else records.damaged(path, "no prediction: it does not say what it is from")


def commits_line(folder):
    """Which commit holds the prediction and which ones the records, so that a reader sees which came first; None without a prediction."""
    path = folder / "prediction.json"
    if not path.exists():
        return None
    held = [folder / name for name in ("runs.csv.gz", "arrivals.csv.gz") if (folder / name).exists()]
    return (f"Predicted by the cost model of \"{prediction_of(folder)['from']}\" in commit {commit_of(path)}; records in commit "
            f"{', '.join(sorted({commit_of(file) for file in held}))}.")


def failures_lines(passes):
    """What became of unserved requests, a line a rate."""
    return [f"At {rate:g}/s unserved: " + ", ".join(f"{failure['count']} {failure['end']}" + (f" (first: {failure['first_error']})" if failure["first_error"] else "")
                                                   for failure in figures["failures"]) + "." for rate, figures in passes.items() if figures.get("failures")]


def engine_page(engine, folder):
    context = records.context(folder)
    closed, passes = records.closed(folder), records.open_passes(folder)
    prediction = prediction_of(folder)
    parts = [f"# {engine} on {context['device_name']}",
             f"{context['model']}, {context['dtype']}; Ridge {context['ridge_version']}, measured at commit {', '.join(records.commits(folder))}; "
             f"parameters `{context['engine_params']}`.", commits_line(folder)]
    if closed:
        rows = [[name, str(figures["batch"]), str(figures["runs"]), *compared(CLOSED_KEYS, figures, prediction["closed"].get(name)),
                 f"{figures['itl_p95_ms']:.4g}", f"{figures['peak_gib']:.2f}", "yes" if figures["deterministic"] else "NO"]
                for name, figures in sorted(closed.items(), key=lambda item: size_key(item[0]))]
        parts += ["## Whole batches", table(header_of(["workload", "sequences", "runs"], CLOSED_KEYS) + ["ITL p95, ms", "peak, GiB", "all runs alike"], rows)]
    if passes:
        rows = [[f"{rate:g}", *compared(OPEN_KEYS, figures, prediction["open"].get(f"{rate:g}")), f"{figures['ttft_p99_s']:.4g}",
                 f"{figures['queue_p50_s']:.4g}", f"{figures['tokens_per_s']:.4g}", str(figures["unserved"])] for rate, figures in passes.items()]
        parts += ["## Requests that arrive over time", table(header_of(["offered/s"], OPEN_KEYS) + ["TTFT p99, s", "queue p50, s", "tokens/s", "unserved"], rows), *failures_lines(passes)]
    in_flight = records.concurrency_passes(folder)
    if in_flight:
        rows = [[str(count), f"{figures['served_per_s']:.3f}", f"{figures['ttft_p50_s']:.4g}", f"{figures['ttft_p99_s']:.4g}", figure(figures["tokens_per_s"]),
                 str(figures["unserved"])] for count, figures in in_flight.items()]
        parts += ["## So many at once", table(["in flight", "served/s", "TTFT p50, s", "TTFT p99, s", "tokens/s", "unserved"], rows)]
    grades = [grade(prediction[kind][name][key], figures[key]) for kind, found in (("closed", closed), ("open", {f"{r:g}": f for r, f in passes.items()}))
              for name, figures in found.items() if name in prediction[kind] for key in prediction[kind][name]]
    if grades:
        parts.append(f"Grade: {grades.count('hit')} of {len(grades)} predictions hit, {grades.count('near')} near, {grades.count('miss')} missed.")
    parts.append(parity_line(folder) or "")
    pictures = [picture for picture, drawn in (("prompt-length", closed), ("batch-size", closed), ("arrival-rate", passes)) if drawn
                and (folder.parent / "figures" / f"{picture}.svg").exists()]
    parts.append("\n".join(f"![{picture}](../figures/{picture}.svg)" for picture in pictures))
    commands = again.commands(engine, folder)
    if commands:
        parts.append("Again, into a folder of its own (all engines, with the numbers of runs that were taken: `bench/ladder.sh`):\n\n```sh\n" + "\n".join(commands) + "\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def same_outputs(folders):
    """A sentence: how many sequences gave the same tokens wherever two engines ran the same ones, and which engines were not compared."""
    outputs = {}  # (workload, sequence, tokens) -> output -> engines
    for engine, folder in folders:
        for name, figures in {} if records.simulated(folder) else records.closed(folder).items():
            for sequence, tokens, output in figures["outputs"]:
                outputs.setdefault((name, sequence, tokens), {}).setdefault(output, []).append(engine)
    compared = {key: groups for key, groups in outputs.items() if len(set(sum(groups.values(), []))) > 1}
    if not compared:
        made_up = all(records.simulated(folder) for _, folder in folders)
        return "The engines' tokens were not compared: " + ("those of a simulated device are made up." if made_up else "no two engines ran the same sequences.")
    engines = {engine for groups in compared.values() for engine in sum(groups.values(), [])}
    left = [engine for engine, _ in folders if engine not in engines]
    differing = {}
    for (name, _, _), groups in compared.items():
        if len(groups) > 1:
            differing.setdefault(name, list(groups.values()))
    count = f"{len(compared):,} sequences that two engines or more ran"
    verdict = (f"The tokens of {count} are the same in all of them ({len(engines)} engines)." if not differing else
               f"Of {count}, outputs differ: " + "; ".join(f"{name}: {groups}" for name, groups in differing.items()) + ".")
    return verdict + (f" Not compared: {', '.join(left)}." if left else "")


def ladder_page(root, folders):
    rows = []
    for engine, folder in folders:
        closed, passes = records.closed(folder), records.open_passes(folder)
        single = next((f for f in closed.values() if f["label"] == "p256" and f["batch"] == 1), None)
        largest = max((f for f in closed.values() if f["batch"] > 1 and f["label"] == records.batch_label(closed)), key=lambda f: f["tokens_per_s"], default=None)
        most = max((f["served_per_s"] for f in passes.values()), default=0)
        rows.append([f"[{engine}]({folder.name}/README.md)", f"{single['ttft_ms']:.2f}" if single else "", f"{single['itl_p50_ms']:.3f}" if single else "",
                     f"{largest['tokens_per_s']:.0f} at {largest['batch']}" if largest else "", f"{most:.2f}" if most else ""])
    context = records.context(folders[0][1])
    verdict = same_outputs(folders)
    figures = sorted((root / "figures").glob("*.svg")) if (root / "figures").is_dir() else []
    pictures = "\n".join(f"![{path.stem}](figures/{path.name})" for path in figures)
    return (f"# The ladder on {context['device_name']}\n\n{context['model']}, {context['dtype']}.\n\n"
            + table(["engine", "p256 alone: TTFT, ms", "ITL, ms", "most tokens/s, equal prompts", "most served/s"], rows)
            + "\n\n" + "\n\n".join(filter(None, [verdict, pictures, *controls_tables(root), *overhead_parts(root)])) + "\n")


def controls_tables(root):
    """Closed and open runs of the controls, and what the goodput search found."""
    closed, passes, at_once, goodput, lines = [], [], [], [], {}
    for part in records.control_roots(root):
        for engine, folder in records.engine_folders(part):
            lines.setdefault(commits_line(folder), []).append(f"{part.name}/{engine}")
            prediction = prediction_of(folder)
            if part.name == "goodput":
                rate, served = records.goodput(folder)
                expected = prediction.get("goodput_per_s")
                goodput.append([engine, f"{rate:.1f}", f"{expected:.1f} {grade(expected, rate)}" if expected else "", f"{served:.1f}", records.way(folder)])
                continue
            for name, figures in records.closed(folder).items():
                closed.append([part.name, engine, name, f"{figures['total_s']:.2f}", *compared(CLOSED_KEYS, figures, prediction["closed"].get(name))])
            for rate, figures in records.open_passes(folder).items():
                passes.append([part.name, engine, f"{rate:g}", *compared(OPEN_KEYS, figures, prediction["open"].get(f"{rate:g}")),
                               f"{figures.get('itl_p99_ms', 0):.2f}", f"{figures.get('gap_worst_ms', 0):.1f}"])
            for count, figures in records.concurrency_passes(folder).items():
                at_once.append([part.name, engine, str(count), f"{figures['served_per_s']:.3f}", figure(figures["tokens_per_s"]), f"{figures['ttft_p50_s']:.4g}"])
    parts = [f"{', '.join(names)}: {line[0].lower()}{line[1:]}" for line, names in lines.items() if line]
    if closed:
        parts.append(table(header_of(["control", "engine", "workload", "seconds"], CLOSED_KEYS), closed))
    if passes:
        parts.append(table(header_of(["control", "engine", "offered/s"], OPEN_KEYS) + ["ITL p99, ms", "worst gap, ms"], passes))
    if at_once:
        parts.append(table(["control", "engine", "in flight", "served/s", "tokens/s", "TTFT p50, s"], at_once))
    if goodput:
        parts.append("Goodput (p99 TTFT <= 500 ms, p99 ITL <= 25 ms), requests/s:\n\n" + table(["engine", "offered", "predicted", "served of it", "asked"], goodput))
    return ["## Controls", *parts] if parts else []


def overhead_grades(root):
    """(engine, context, figures, predicted ones) of each pass over one token that was predicted."""
    path = root / "overhead-prediction.json"
    expected = records.read_json(path)["passes"] if path.exists() else {}
    return [(engine, context, figures, expected[engine][str(context)]) for engine, found in records.overhead(root).items()
            for context, figures in found.items() if str(context) in expected.get(engine, {})]


def overhead_parts(root):
    files = sorted(root.glob("overhead-*.md"))
    printed = [path.read_text().strip() for path in files]
    parts = [re.sub(r"\n(?=[^|\n])", "\n\n", re.sub(r"(?<=us)\n", "\n\n", text)) for text in printed]
    rows = [[engine, str(context), *compared(PASS_KEYS, figures, predicted)] for engine, context, figures, predicted in overhead_grades(root)]
    if rows:
        path = root / "overhead-prediction.json"
        parts.append(f"Predicted by the cost model of \"{records.read_json(path)['from']}\" in commit {commit_of(path)}; records in commit "
                     f"{', '.join(sorted({commit_of(file) for file in files}))}.")
        parts.append(table(header_of(["engine", "context"], PASS_KEYS), rows))
    return ["## What a pass over one token costs", *parts] if parts else []


def golden(file, folder):
    """`file`: {"p16": {"prompt_tokens", "token_ids"}, ...}, of one sequence alone."""
    lines = []
    for label, output in records.read_json(file).items():
        if not isinstance(output, dict) or not output.get("token_ids") or "prompt_tokens" not in output:
            records.damaged(file, f"{label} has no prompt_tokens and token_ids")
        sha = hashlib.sha256(",".join(map(str, output["token_ids"])).encode()).hexdigest()[:8]
        lines.append(json.dumps({"workload": f"{label}-x1", "sequence_index": 0, "prompt_tokens": output["prompt_tokens"], "output_sha8": sha,
                                 "token_ids": output["token_ids"]}))
    if not lines:
        records.damaged(file, "no outputs")
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "runs.jsonl.gz", "wt", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")


def published(root):
    """Prints the series' figures, each with what was measured here after it."""
    series = json.loads((pathlib.Path(__file__).parent / "traces" / "published.json").read_text())
    folders = dict(records.ladder_folders(root))
    keys = {"ttft_ms": "TTFT, ms", "decode_tps": "tokens/s", "itl_p95_ms": "ITL p95, ms", "peak_gib": "peak, GiB"}
    rows = []
    for engine, prompts in series["single"].items():
        here = records.closed(folders[engine]) if engine in folders else {}
        for prompt, points in prompts.items():
            found = here.get(f"{prompt}-x1")
            rows.append([engine, prompt, *(cell for key in keys for cell in (figure(points[key]), figure(found[key]) if found else ""))])
    print(table(["engine", "prompt", *(cell for name in keys.values() for cell in (name + " there", "here"))], rows), end="\n\n")
    rows = []
    for engine, points in series["served_per_s"].items():
        passes = records.open_passes(folders[engine]) if engine in folders else {}
        for rate, served in points.items():
            found = passes.get(float(rate))
            rows.append([engine, rate, figure(served), figure(found["served_per_s"]) if found else ""])
    print(table(["engine", "offered/s", "served/s there", "here"], rows), end="\n\n")
    rows = []
    for key, unit, read in (("tokens_per_s", "in flight", records.concurrency_passes), ("ttft_p50_s", "a second", records.open_passes)):
        for engine, points in series["network"][key].items():
            here = read(root / "network" / engine)
            for at, there in points.items():
                found = here.get(int(at))
                rows.append([engine, f"{at} {unit}", key, figure(there), figure(found[key]) if found else ""])
    print(table(["over a network", "at", "figure", "there", "here"], rows))


def goodput_headline(root):
    """Keeps ridge's goodput beside flash's as the device's figure with a bar, where both were measured alike at a commit that is known."""
    folders = [root / "goodput" / engine for engine in ("flash", "ridge")]
    headline_file = root / "headline.json"
    if headline_file.exists():
        records.read_json(headline_file, list)  # or ends here, with its name
    commit = [(records.commits(folder) or ["unknown"])[-1] for folder in folders][-1]
    flash, ridge = (records.goodput(folder)[0] for folder in folders)
    ways = {records.way(folder) for folder in folders}
    if flash > 0 and ridge > 0 and commit != "unknown" and len(ways) == 1:
        context = records.context(root / "naive") or records.context(folders[1])
        headline.update(headline_file, f"bench/ladder.sh --model {context['model']} --device {context['device']} --out DIR --only goodput", commit,
                        [("goodput_ridge_over_flash", ridge / flash, "ratio", ">= 1.2",
                          f"flash {ways.pop()}, same ladder: {flash:.1f} requests/s offered, ridge {ridge:.1f}")])


def write(root):
    folders = records.ladder_folders(root)
    pages = {folder / "README.md": engine_page(engine, folder) for engine, folder in folders} | {root / "LADDER.md": ladder_page(root, folders)}
    for path, page in pages.items():
        path.write_text(page)
        print(path)
    goodput_headline(root)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("predict")
    command.add_argument("simulated", type=pathlib.Path)
    command.add_argument("device", type=pathlib.Path)
    command.add_argument("--replace", action="store_true", help="predictions that have records beside them, too")
    commands.add_parser("write").add_argument("device", type=pathlib.Path)
    commands.add_parser("published").add_argument("device", type=pathlib.Path)
    command = commands.add_parser("golden")
    command.add_argument("file", type=pathlib.Path)
    command.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.command == "predict":
        predict(arguments.simulated, arguments.device, arguments.replace)
    elif arguments.command == "golden":
        golden(arguments.file, arguments.folder)
    elif arguments.command == "published":
        published(arguments.device)
    else:
        write(arguments.device)


if __name__ == "__main__":
    main()
