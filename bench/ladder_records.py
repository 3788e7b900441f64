"""Reads the records of ridge-bench (runs.csv.gz, runs.jsonl.gz, arrivals.csv.gz, passes.jsonl.gz) and sums them up as the series does."""
import csv
import gzip
import io
import json
import math
import pathlib
import re
import statistics
import sys
import zlib

ENGINES = ["naive", "cached", "batched", "continuous", "paged", "chunked", "fused", "flash", "ridge"]
# What is read of each file; ridge-bench writes more.
CONTEXT = {"engine", "engine_params", "model", "dtype", "device", "device_name", "ridge_version", "commit"}
COLUMNS = {
    "runs.csv.gz": CONTEXT | {"is_warmup", "workload", "run_index", "batch_id", "completion_tokens", "total_s", "decode_s", "peak_mem_bytes", "prompt_label",
                              "prompt_tokens", "ttft_s", "itl_p50_ms", "itl_p95_ms", "notes", "sequence_index", "output_sha8"},
    "arrivals.csv.gz": CONTEXT | {"in_flight", "sweep_id", "last_rate", "rate", "latency_s", "arrival_s", "queue_s", "ttft_s", "completion_tokens", "end",
                                  "prompt_label", "budget", "seed"},
}
NUMBERS = {"run_index", "completion_tokens", "total_s", "decode_s", "peak_mem_bytes", "prompt_tokens", "ttft_s", "itl_p50_ms", "itl_p95_ms", "in_flight",
           "last_rate", "rate", "latency_s", "arrival_s", "queue_s"}
LINE_FIELDS = {"runs.jsonl.gz": {"workload", "prompt_tokens", "output_sha8"}, "passes.jsonl.gz": {"rate", "in_flight", "last_rate", "itl_s", "disturbance_s", "notes"}}


def percentile(values, percent):
    """The nearest rank: the smallest value that at least `percent` per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def damaged(path, reason):
    """Ends the program with one line that names the file."""
    sys.exit(f"{path}: {reason}")


def read_text(path):
    """The text of a file, compressed where its name ends in .gz; ends the program where it cannot be read or is empty."""
    try:
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    except OSError as error:
        damaged(path, error.strerror or error)
    except (EOFError, zlib.error) as error:
        damaged(path, f"damaged: {error}")
    except UnicodeDecodeError:
        damaged(path, "damaged: not UTF-8")
    return text if text.strip() else damaged(path, "empty")


def read_json(path, kind=dict):
    """The content of a JSON file that holds a `kind`."""
    try:
        content = json.loads(read_text(path))
    except ValueError as error:
        damaged(path, f"not JSON: {error}")
    return content if isinstance(content, kind) else damaged(path, f"holds no {kind.__name__}")


def read_csv(path):
    """The rows of a compressed file, as dicts of strings; none where there is no file."""
    if not path.exists():
        return []
    rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    if not rows:
        damaged(path, "no records")
    missing = COLUMNS[path.name] - set(rows[0])
    if missing:
        damaged(path, f"no column {min(missing)}")
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            damaged(path, f"record {number} is cut or has too many cells")
        if row["engine"] == "engine":
            damaged(path, f"record {number} is a second header: two runs wrote at once")
        for column in NUMBERS & COLUMNS[path.name]:
            try:
                float(row[column] or 0)
            except ValueError:
                damaged(path, f"record {number}: {column} is no number: {row[column]}")
    return rows


def read_lines(path):
    """The objects of a compressed file of JSON lines; none where there is no file."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            damaged(path, f"line {number}: {error}")
        if not isinstance(found[-1], dict) or not LINE_FIELDS[path.name] <= set(found[-1]):
            damaged(path, f"line {number}: no record with {', '.join(sorted(LINE_FIELDS[path.name]))}")
    return found


def closed(folder):
    """Workload -> figures over its recorded runs (warm-ups left out)."""
    runs = {}
    for row in read_csv(pathlib.Path(folder) / "runs.csv.gz"):
        if row["is_warmup"] == "False":
            runs.setdefault(row["workload"], {}).setdefault(row["run_index"], []).append(row)
    for workload, by_index in runs.items():
        for run_index, rows in by_index.items():
            refuse_twice(folder, f"run {run_index} of {workload}", {row["batch_id"] for row in rows})
    return {workload: closed_figures(list(by_index.values())) for workload, by_index in runs.items()}


def refuse_twice(folder, what, ids):
    """Two runs with one name would be counted as one; ends the program."""
    if len(ids) > 1:
        sys.exit(f"{folder}: {what} is there more than once ({', '.join(sorted(ids))})")


def closed_figures(runs):
    """`runs`: lists of rows, one row a sequence."""
    rows = [row for run in runs for row in run]
    tokens = [sum(int(row["completion_tokens"]) for row in run) for run in runs]
    clocks = [max(float(row["total_s"]) for row in run) for run in runs]
    gaps = sum(int(row["completion_tokens"]) - 1 for row in rows)
    decode_s = sum(float(row["decode_s"]) for row in rows)
    peaks = [int(row["peak_mem_bytes"]) for row in rows if row["peak_mem_bytes"]]
    return {
        "batch": len(runs[0]),
        "label": runs[0][0]["prompt_label"] if len({row["prompt_label"] for row in runs[0]}) == 1 else "mixed",
        "prompt_tokens": int(runs[0][0]["prompt_tokens"]),
        "ttft_ms": 1e3 * statistics.median(statistics.median(float(row["ttft_s"]) for row in run) for run in runs),
        "itl_p50_ms": statistics.median(statistics.median(float(row["itl_p50_ms"]) for row in run) for run in runs),
        "itl_p95_ms": statistics.median(statistics.median(float(row["itl_p95_ms"]) for row in run) for run in runs),
        "total_s": statistics.mean(clocks),
        "decode_tps": gaps / decode_s if decode_s > 0 else 0.0,
        "tokens_per_s": sum(tokens) / sum(clocks) if sum(clocks) > 0 else 0.0,  # simulated:zero takes no time
        "peak_gib": max(peaks) / 2**30 if peaks else 0.0,
        "runs": len(runs),
        "work": work_of(runs[0][0]["notes"]),
        "outputs": sorted({(row["sequence_index"], row["completion_tokens"], row["output_sha8"]) for row in rows}),
        "deterministic": len({tuple(row["output_sha8"] for row in run) for run in runs}) == 1,
    }


def batch_label(runs):
    """The prompt of which most batch sizes were measured, of `closed` figures; p256 where there is none."""
    labels = [figures["label"] for figures in runs.values() if figures["label"] != "mixed"]
    return max(sorted(set(labels)), key=labels.count, default="p256")


def work_of(notes):
    """What the engine did in a run, as its notes have it: {"steps": 256, "rows": 4351, ...}."""
    return {name: int(count) for name, count in (part.split(" ") for part in notes.split(", ") if part)}


def concurrency_passes(folder):
    """Requests in flight -> figures of the pass."""
    passes = {}
    for row in read_csv(pathlib.Path(folder) / "arrivals.csv.gz"):
        if row["in_flight"] != "0":
            passes.setdefault(int(row["in_flight"]), []).append(row)
    for count, rows in passes.items():
        refuse_twice(folder, f"the pass with {count} in flight", {row["sweep_id"] for row in rows})
    return {count: open_figures(rows) for count, rows in sorted(passes.items())}


def open_passes(folder):
    """Rate -> figures of the pass."""
    passes = {}
    for row in read_csv(pathlib.Path(folder) / "arrivals.csv.gz"):
        if row["in_flight"] == "0" and float(row["last_rate"]) == 0:
            passes.setdefault(float(row["rate"]), []).append(row)
    for rate, rows in passes.items():
        refuse_twice(folder, f"the pass at {rate:g}/s", {row["sweep_id"] for row in rows})
    found = {rate: open_figures(rows) for rate, rows in sorted(passes.items())}
    for line in read_lines(pathlib.Path(folder) / "passes.jsonl.gz"):
        rate = float(f"{line['rate']:g}")  # as arrivals.csv has it
        if line["in_flight"] == 0 and line["last_rate"] == 0 and rate in found:
            found[rate].update(gap_figures(line))
    untold = [rate for rate, figures in found.items() if "itl_p50_ms" not in figures]
    if untold and passes[untold[0]][0]["device"] != "peer":  # what measures peers writes no such file
        damaged(pathlib.Path(folder) / "passes.jsonl.gz", f"missing, or has no line of the pass at {untold[0]:g}/s that is in arrivals.csv.gz")
    return found


def gap_figures(line):
    """What only the tokens' times say, from a line of passes.jsonl.gz."""
    return {
        "itl_p50_ms": 1e3 * line["itl_s"]["p50"],
        "itl_p99_ms": 1e3 * line["itl_s"]["p99"],
        "gap_p50_ms": 1e3 * line["disturbance_s"]["p50"],
        "gap_worst_ms": 1e3 * line["disturbance_s"]["worst"],
        "gaps_over_150_ms": line["disturbed_over_150_ms"],
        "work": work_of(line["notes"]),
        "failures": line.get("failures", []),
    }


def goodput(folder, ttft_s=0.5, itl_ms=25.0, least_served=0.8):
    """(the highest offered rate that met the limits, as `ridge-bench --goodput` has it, what of it was served); 0 where there is none."""
    return max(((rate, figures["served_per_s"]) for rate, figures in open_passes(folder).items()
                if figures["unserved"] == 0 and figures["served_per_s"] >= least_served * figures["arrived_per_s"] and figures["ttft_p99_s"] <= ttft_s
                and figures.get("itl_p99_ms", math.inf) <= itl_ms), default=(0.0, 0.0))


def way(folder):
    """How the requests of a folder's arrivals went: "in one process", or through what the records say."""
    ways = {way_of(row) for row in read_csv(pathlib.Path(folder) / "arrivals.csv.gz")}
    return ways.pop() if len(ways) == 1 else "in more ways than one"


def way_of(row):
    if row["device"] == "peer":
        return "through a server of its own"
    return f"through {through(row)}" if row["device"] == "service" else "in one process"


def through(row):
    """What answered `ridge-bench serve-load`, in words; older records do not say more than that it was a service."""
    return params(row).get("through", "a service")


def params(row):
    """The parameters of an engine by name."""
    try:
        found = json.loads(row["engine_params"])
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def open_figures(rows):
    served = [row for row in rows if row["latency_s"]]
    ends = [float(row["arrival_s"]) + float(row["latency_s"]) for row in served]
    arrivals = [float(row["arrival_s"]) for row in rows]
    stayed = sum(row["end"] != "cancelled" for row in rows)
    first, last = min(arrivals), max(arrivals)
    span = max(ends) - first if served else 0.0
    queue = [float(row["queue_s"]) for row in served if row["queue_s"]]
    ttft = [float(row["ttft_s"]) for row in served]
    return {
        "requests": len(rows),
        "unserved": sum(not row["latency_s"] and row["end"] != "cancelled" for row in rows),
        "arrived_per_s": (len(rows) - 1) / (last - first) * stayed / len(rows) if last > first else 0.0,
        "served_per_s": len(served) / span if span > 0 else 0.0,
        "tokens_per_s": sum(int(row["completion_tokens"]) for row in served) / span if span > 0 else 0.0,
        "queue_p50_s": percentile(queue, 50) if queue else 0.0,
        "ttft_p50_s": percentile(ttft, 50) if ttft else 0.0,
        "ttft_p99_s": percentile(ttft, 99) if ttft else 0.0,
    }


def outputs(folder):
    """Prompt label -> {token ids: sequences that gave them}, over all runs, warm-ups too."""
    ids, found = {}, {}
    path = pathlib.Path(folder) / "runs.jsonl.gz"
    for number, row in enumerate(read_lines(path), 1):
        if "token_ids" in row:
            ids[row["output_sha8"]] = tuple(row["token_ids"])
        if row["output_sha8"] not in ids:
            damaged(path, f"line {number}: the token ids of {row['output_sha8']} are in no line before it")
        counts = found.setdefault(row["prompt_label"], {})
        counts[ids[row["output_sha8"]]] = counts.get(ids[row["output_sha8"]], 0) + 1
    return found


def parity(folder, reference):
    """(sequences that gave the reference's tokens as far as both went, sequences whose prompt it was asked too); 0 of 0 of a simulated device."""
    same = compared = 0
    expected = {} if simulated(folder) else {label: max(found, key=len) for label, found in outputs(reference).items()}
    for label, found in outputs(folder).items():
        for ids, count in found.items() if label in expected else ():
            common = min(len(ids), len(expected[label]))
            compared += count
            same += count if ids[:common] == expected[label][:common] else 0
    return same, compared


def simulated(folder):
    """Whether a folder's tokens are made up."""
    found = context(folder)
    return found is not None and found["device"].startswith("simulated")


def overhead(root):
    """Engine -> context -> figures of a pass over one token in us, from what `ridge-bench overhead` printed."""
    found, engine = {}, None
    for path in sorted(pathlib.Path(root).glob("overhead-*.md")):
        for line in read_text(path).splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if " launches, on " in line:
                engine = line.split(" as ")[1].split(" launches, on ")[0]
            elif cells[0].isdigit() and engine:
                names = ("pipelined_us", "serialized_us", "submit_us", "sync_us", "launches", "launch_us")
                try:
                    found.setdefault(engine, {})[int(cells[0])] = dict(zip(names, map(float, cells[1:]), strict=True))
                except ValueError:
                    damaged(path, f"not as ridge-bench overhead prints it: {line}")
    return found


def overhead_device(root):
    """The device of which `overhead` was printed, from the first line that names one; "" where none does."""
    texts = (path.read_text() for path in sorted(pathlib.Path(root).glob("overhead-*.md")))
    return next((re.search(r" launches, on (.*): a pass", text)[1] for text in texts if " launches, on " in text), "")


def gaps_ms(folder, workload):
    """The gaps between tokens of all recorded runs of a workload."""
    path = pathlib.Path(folder) / "runs.jsonl.gz"
    return [us / 1e3 for row in read_lines(path) if row["workload"] == workload and not row["is_warmup"] for us in row["token_gaps_us"][1:]]


def context(folder):
    """What all records of a folder have in common, from the first row there is."""
    for name in ("runs.csv.gz", "arrivals.csv.gz"):
        rows = read_csv(pathlib.Path(folder) / name)
        if rows:
            return {key: rows[0][key] for key in sorted(CONTEXT)}
    return None


def commits(folder):
    """The commits at which the records of a folder were measured, in their order."""
    found = {}
    for name in ("runs.csv.gz", "arrivals.csv.gz"):
        found |= dict.fromkeys(row["commit"] or "unknown" for row in read_csv(pathlib.Path(folder) / name))
    return list(found)


def control_roots(root):
    """The folders of the controls, of what went over a network and of the goodput search, each with engines in it."""
    root = pathlib.Path(root)
    found = [path for path in (root / "controls").iterdir() if path.is_dir()] if (root / "controls").is_dir() else []
    controls = sorted(found, key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)])
    return controls + [root / name for name in ("network", "goodput") if (root / name).is_dir()]


def engine_folders(root):
    """(engine, folder) in the order of the ladder, peers after it; ends the program where `root` is no folder."""
    if not pathlib.Path(root).is_dir():
        sys.exit(f"{root}: no such folder")
    folders = {path.name: path for path in sorted(pathlib.Path(root).iterdir())
               if path.is_dir() and any((path / name).exists() for name in ("runs.csv.gz", "arrivals.csv.gz"))}
    order = [engine for engine in ENGINES if engine in folders] + [name for name in folders if name not in ENGINES]
    return [(engine, folders[engine]) for engine in order]


def ladder_folders(root):
    """As engine_folders; ends the program where there are none, or where two of them, or a control, measured two models."""
    folders = engine_folders(root)
    if not folders:
        damaged(root, "no records")
    models = {}
    for part in [root, *control_roots(root)]:
        for _, folder in engine_folders(part):
            found = context(folder)
            if found["device"] not in ("peer", "service"):  # they name models as they like
                models.setdefault(found["model"], folder)
    if len(models) > 1:
        damaged(root, "two models are no ladder: " + ", ".join(f"{model} in {folder}" for model, folder in models.items()))
    return folders
