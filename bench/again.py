"""The commands that measure again what a folder of records holds, as they are typed in the root of the sources."""
import collections
import csv
import io
import json
import pathlib
import shlex

import ladder_records as records

TRACES = pathlib.Path(__file__).parent / "traces"
BENCH, OUT, SERVICE = "build/release/bin/ridge-bench", "build/again", "127.0.0.1:50050"


def frozen():
    """Name -> (label, budget) of each request, of every workload in bench/traces."""
    found = {}
    for path in sorted(TRACES.glob("mixed-*.jsonl")):
        items = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        found[path.name] = collections.Counter((item["label"], str(item["max_tokens"])) for item in items)
    return found


def arriving(rows):
    """What arrived in a pass, as flags: a frozen workload, or the first requests of a draw."""
    asked = collections.Counter((row["prompt_label"], row["budget"]) for row in rows)
    for name, requests in frozen().items():
        if requests == asked:
            return f"--workload bench/traces/{name}"
    if rows[0]["seed"] != "0":
        return f"--requests {len(rows)} --draw_seed {rows[0]['seed']}"
    draw = list(csv.DictReader(io.StringIO((TRACES / "mixed-draw-400.csv").read_text())))[:len(rows)]
    drawn = collections.Counter((f"p{row['prompt_tokens']}", row["budget"]) for row in draw)
    return f"--requests {len(rows)}" if drawn == asked else '--workload "$workload"'


def pass_flags(folder):
    """The flags of each command that repeats passes: those of the same requests together."""
    passes = {}
    for row in records.read_csv(pathlib.Path(folder) / "arrivals.csv.gz"):
        passes.setdefault((int(row["in_flight"]), float(row["rate"]), float(row["last_rate"])), []).append(row)
    commands = {}
    for (in_flight, rate, last_rate), rows in sorted(passes.items()):
        if in_flight:
            key, value = ("arrivals", "--in_flight", "", arriving(rows)), str(in_flight)
        elif rate:
            key, value = ("arrivals", "--rates", f" --last_rate {last_rate:g}" if last_rate else "", arriving(rows)), f"{rate:g}"
        else:
            key, value = ("replay", "", "", arriving(rows)), ""
        commands.setdefault(key, []).append(value)
    return [(command, " ".join(filter(None, [name and f"{name} {','.join(values)}{last}", requests])))
            for (command, name, last, requests), values in commands.items()]


def closed_flags(closed):
    """The flags of each command that repeats whole batches: prompts of the same sizes together, and the mixed ones."""
    sizes, tokens, mixed = {}, set(), []
    for name, figures in closed.items():
        if name.startswith("mixed"):
            mixed.append(figures["batch"])
            continue
        sizes.setdefault(figures["label"], []).append(figures["batch"])
        tokens |= {count for _, count, _ in figures["outputs"]}
    together = {}
    for label, batches in sorted(sizes.items(), key=lambda item: int(item[0][1:])):
        together.setdefault(tuple(sorted(batches)), []).append(label)
    new_tokens = f" --new_tokens {max(map(int, tokens))}" if tokens else ""
    found = [f"--prompts {','.join(labels)} --batch_size {','.join(map(str, batches))}{new_tokens}" for batches, labels in together.items()]
    return found + ([f"--prompts none --mixed {','.join(map(str, sorted(mixed)))}"] if mixed else [])


def commands(engine, folder):
    """Lines of a shell; none for a peer, which a program of its own measures."""
    context = records.context(folder)
    if context["device"] == "peer":
        return []
    if context["device"] == "service":
        through = records.params(context).get("through")
        common = f"--target {SERVICE} --called {engine}" + (f" --through {shlex.quote(through)}" if through else "") + f" --out {OUT}"
        lines = [f"{BENCH} serve-load {common} {flags}" for _, flags in pass_flags(folder)]
        first = [f"# {records.through(context)} with {context['model']} at {SERVICE}, as README.md starts one"]
    else:
        named = context["model"].startswith("synthetic:")
        cached = " --prefix_cache on" if '"prefix_cache":"on"' in context["engine_params"] else ""
        model = context["model"] if named else '"$model"'
        common = f"--model {model} --device {context['device']} --engine {engine} --out {OUT}{cached}"
        lines = [f"{BENCH} closed {common} {flags}" for flags in closed_flags(records.closed(folder))]
        lines += [f"{BENCH} {command} {common} {flags}" for command, flags in pass_flags(folder)]
        first = [] if named else [f"model=PATH  # of {context['model']}"]
    if any('"$workload"' in line for line in lines):
        first.append("workload=PATH  # of what arrived: it is none of bench/traces")
    return first + lines
