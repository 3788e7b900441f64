#!/usr/bin/env python3
"""The series' story in figures: fills the tables of docs/ladder.md from the records.

usage: bench/story.py docs/ladder.md bench/results/DEVICE [--cpu bench/results/DEVICE]

A table stands between `<!-- NAME -->` and `<!-- end -->`; what stands there is replaced. Tables: parts (claim, figure there, figure
here, whether it holds), engines, predictions, cpu. A part whose records are missing says so.
"""
import argparse
import pathlib
import re
import sys

import ladder_records as records
from report import CLOSED_KEYS, OPEN_KEYS, all_folders, figures_of, grade, overhead_grades, prediction_of, table

MISSING = ("not measured", "")
ONE_POINT = ""  # whether a claim of a trend holds, where one point was measured


class Ladder:
    """The records of one device, read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.folders = dict(records.ladder_folders(root))
        self.closed = {engine: records.closed(folder) for engine, folder in self.folders.items()}
        self.passes = {engine: records.open_passes(folder) for engine, folder in self.folders.items()}
        self.overhead = records.overhead(root)

    def control(self, name, engine):
        return self.root / "controls" / name / engine

    def most_served(self, engine):
        return max(figures["served_per_s"] for figures in self.passes[engine].values())

    def shared_rate(self, *engines):
        """The highest rate at which all of them were measured."""
        return max(set.intersection(*(set(self.passes[engine]) for engine in engines)))


def holds(condition, almost=False):
    return "yes" if condition else "in part" if almost else "no"


def ratio(ladder, above, below, there):
    """How many times what the engine below it serves; only where both were driven as far."""
    if max(ladder.passes[above]) < max(ladder.passes[below]):
        raise KeyError(above)
    here = ladder.most_served(above) / ladder.most_served(below)
    text = f"{ladder.most_served(below):.2f} -> {ladder.most_served(above):.2f} requests/s, {here:.2f} x"
    return text, holds(here >= 1.05, here >= 0.98 and there < 1.3)


def forwards(ladder):
    naive, cached = (ladder.closed[engine]["p4096-x1"]["work"]["rows"] for engine in ("naive", "cached"))
    return f"{naive:,} against {cached:,} at p4096, {naive / cached:.0f} x; {1 - cached / naive:.1%} of the arithmetic is done again", holds(240 < naive / cached < 256)


def naive_slows(ladder):
    short, long = (ladder.closed["naive"][name]["itl_p50_ms"] for name in ("p16-x1", "p4096-x1"))
    return f"{short:.2f} -> {long:.1f} ms a token from p16 to p4096, {long / short:.0f} x", holds(long > 2 * short)


def cached_is_flat(ladder):
    alone = sorted((f["prompt_tokens"], f["label"], f["itl_p50_ms"]) for f in ladder.closed["cached"].values() if f["batch"] == 1 and f["label"] != "mixed")
    itl = [point[-1] for point in alone]
    if len(alone) < 2:
        return f"{itl[0]:.2f} ms a token at {alone[0][1]}, no other prompt", ONE_POINT
    spread = max(itl) / min(itl)
    return f"{min(itl):.2f} to {max(itl):.2f} ms a token from {alone[0][1]} to {alone[-1][1]}", holds(spread < 1.15, spread < 2)


def launches(ladder):
    work = ladder.closed["cached"]["p256-x1"]["work"]
    issued = f"{work['launches'] / work['steps']:.0f} operations a step"
    if "cached" not in ladder.overhead:
        stream, replayed = (ladder.closed[engine]["p256-x1"]["itl_p50_ms"] for engine in ("flash", "ridge"))
        return f"{issued}; replayed from a graph a token takes {replayed:.2f} ms in place of {stream:.2f}, {1 - replayed / stream:.0%} less", holds(False, replayed < 0.95 * stream)
    cost = ladder.overhead["cached"][256]
    share = cost["submit_us"] / cost["pipelined_us"]
    return f"{issued}, {cost['submit_us']:.0f} us of the host in a pass of {cost['pipelined_us']:.0f} us, {share:.0%}", holds(share > 0.9, share > 0.5)


def batch_pays(ladder):
    runs = {f["batch"]: f["tokens_per_s"] for f in ladder.closed["batched"].values() if f["label"] == "p256"}
    largest = max(runs)
    if len(runs) < 2:
        return f"{runs[1]:,.0f} tokens/s alone (p256), no batch", ONE_POINT
    return f"{runs[1]:,.0f} tokens/s alone, {runs[largest]:,.0f} in a batch of {largest} (p256), {runs[largest] / runs[1]:.0f} x", holds(runs[largest] > 10 * runs[1])


def drained_batch_waits(ladder):
    rate = ladder.shared_rate("batched", "continuous")
    drained, continuous = (ladder.passes[engine][rate]["queue_p50_s"] for engine in ("batched", "continuous"))
    return f"at {rate:g}/s the median wait is {drained:.3f} s, {max(0, continuous):.3f} s with continuous batching", holds(drained > 5 * max(continuous, 1e-4), drained > continuous)


def padding(_):
    """Of the draw itself: what a rectangle of its first 8 and 32 requests holds beside their prompts."""
    draw = (pathlib.Path(__file__).parent / "traces" / "mixed-draw-400.csv").read_text().splitlines()
    column = draw[0].split(",").index("prompt_tokens")
    shares = []
    for count in (8, 32):
        prompts = [int(line.split(",")[column]) for line in draw[1:count + 1]]
        shares.append(sum(max(prompts) - prompt for prompt in prompts) / (count * (max(prompts) + 256)))
    return f"{shares[0]:.1%} and {shares[1]:.1%} of the positions that a batch of 8 and of 32 reserves", holds([f"{s:.1%}" for s in shares] == ["49.2%", "62.5%"])


def widest_row(ladder):
    rate = ladder.shared_rate("continuous", "paged")
    wide, own = (ladder.passes[engine][rate] for engine in ("continuous", "paged"))
    reads = wide["work"]["kv_positions"] / own["work"]["kv_positions"]
    return (f"at {rate:g}/s attention takes {reads:.2f} x the positions that there are, and a step {wide['itl_p50_ms']:.2f} ms, {own['itl_p50_ms']:.2f} without"
            ), holds(wide["itl_p50_ms"] > 1.1 * own["itl_p50_ms"], reads > 1.1)


def paged_pool(ladder):
    slots, blocks = (records.closed(ladder.control("pool-512MiB", engine))["mixed-x64"]["total_s"] for engine in ("continuous", "paged"))
    return f"{slots:.2f} s with a slot a sequence, {blocks:.2f} s with blocks, {slots / blocks:.2f} x", holds(slots > 1.1 * blocks)


def more_slots(ladder):
    few, many = (records.closed(ladder.control(f"slots-{count}", "continuous"))["mixed-x64"]["total_s"] for count in (8, 32))
    return f"{few:.2f} s through 8 slots, {many:.2f} s through 32", holds(many < 0.9 * few)


def chunks_bound_gaps(ladder):
    rate = ladder.shared_rate("paged", "chunked")
    whole, chunks = (ladder.passes[engine][rate]["gap_worst_ms"] for engine in ("paged", "chunked"))
    return f"at {rate:g}/s the worst gap is {whole:.0f} ms with whole prompts, {chunks:.0f} ms with chunks", holds(chunks < 0.5 * whole, chunks < whole)


def chunk_budget(ladder):
    sizes = [int(path.name.split("-")[1]) for path in records.control_roots(ladder.root) if path.name.startswith("chunk-")]
    worst = {size: next(iter(records.open_passes(ladder.control(f"chunk-{size}", "chunked")).values())) for size in sorted(sizes)}
    text = ", ".join(f"{size}: {figures['gap_worst_ms']:.0f} ms" for size, figures in worst.items())
    gaps = [figures["gap_worst_ms"] for figures in worst.values()]
    if len(gaps) == 1:
        return f"worst gap by chunk, in tokens: {text}, no other chunk", ONE_POINT
    return f"worst gap by chunk, in tokens: {text}", holds(gaps == sorted(gaps), gaps[0] < gaps[-1])


def graphs(ladder):
    stream, replayed = (ladder.closed[engine]["p256-x1"]["itl_p50_ms"] for engine in ("flash", "ridge"))
    text = f"{stream:.2f} -> {replayed:.2f} ms a token alone (p256)"
    if "ridge" in ladder.overhead and "cached" in ladder.overhead:
        costs = [ladder.overhead[engine][256] for engine in ("cached", "ridge")]
        text += f"; the host gives the device {costs[0]['launches']:.0f} -> {costs[1]['launches']:.0f} operations a pass, {costs[0]['submit_us']:.0f} -> {costs[1]['submit_us']:.0f} us"
    return text, holds(replayed < 0.95 * stream, replayed < 1.02 * stream)


def prefix_cache(ladder):
    cached = records.open_passes(ladder.control("prefix-cache", "ridge"))
    rate = max(set(cached) & set(ladder.passes["ridge"]))
    without, with_it = ladder.passes["ridge"][rate]["ttft_p50_s"], cached[rate]["ttft_p50_s"]
    most = max(figures["served_per_s"] for figures in cached.values())
    return (f"{ladder.most_served('ridge'):.1f} -> {most:.1f} requests/s; median TTFT at {rate:g}/s {without * 1e3:.0f} -> {with_it * 1e3:.0f} ms "
            "(every prompt begins as the others do)"), holds(most > 1.1 * ladder.most_served("ridge"))


def goodput(ladder):
    found = {}
    for engine in ("flash", "ridge"):
        rates = records.open_passes(ladder.root / "goodput" / engine)
        met, served = records.goodput(ladder.root / "goodput" / engine)
        found[engine] = met, served, min(rate for rate in rates if rate > met)
    words = ", ".join(f"{engine} {met:.1f} ({served:.1f} served; missed at {missed:.1f})" for engine, (met, served, missed) in found.items())
    times = found["ridge"][0] / found["flash"][0]
    ways = {records.way(ladder.root / "goodput" / engine) for engine in found}
    if len(ways) > 1:
        return f"offered {words} requests/s, but one of them {' and one '.join(sorted(ways))}", ""
    return f"{ways.pop()}, offered {words} requests/s, {times:.2f} x (bar: 1.2)", holds(times >= 1.2, times >= 1)


def same_tokens(ladder):
    if records.simulated(ladder.folders["naive"]):
        return "not compared: the tokens of a simulated device are made up", ""
    pairs = {name: records.parity(folder, ladder.folders["naive"]) for name, folder in all_folders(ladder.root)
             if name.name in records.ENGINES and str(name) != "naive"}
    same, compared = (sum(pair[i] for pair in pairs.values()) for i in (0, 1))
    left = [engine for engine in records.ENGINES if engine != "naive" and not any(pair[1] for name, pair in pairs.items() if name.name == engine)]
    if not compared:
        return "not compared: no other engine ran naive's prompts", ""
    beside = f"; not compared: {', '.join(left)}" if left else ""
    return f"{same:,} of {compared:,} sequences, warm-ups too{beside}", holds(same == compared and not left, same == compared)


# (engine, claim, what the series found on its card, what is found here)
PARTS = [
    ("naive", "Without a cache every token is computed again", "4,352 tokens in place of 1,081,216 at p4096, 248 x; 99.6 %", forwards),
    ("naive", "It slows down with the prompt", "21.9 -> 278 ms a token, 13 x", naive_slows),
    ("cached", "With a cache a token costs the same after any prompt", "21.6 to 22.7 ms a token from p16 to p4096", cached_is_flat),
    ("cached", "What is left is launching", "1,123 launches of 16.5 us: 18.5 ms of the host in a pass of 19.3 ms, 96 %", launches),
    ("batched", "Sequences that share a step share its weights", "44 tokens/s alone, 12,766 in a batch of 1,024 (p16), 290 x", batch_pays),
    ("batched", "A batch that is drained first keeps others waiting", "at 1/s 75.5 s, 0.02 s with continuous batching", drained_batch_waits),
    ("batched", "A rectangle is mostly padding", "49.2 % and 62.5 %, put right", padding),
    ("continuous", "Joining and leaving at every step serves more", "0.67 -> 1.26 requests/s, 1.9 x", lambda ladder: ratio(ladder, "continuous", "batched", 1.9)),
    ("continuous", "The widest row sets the price of attention", "a step as wide as its longest sequence", widest_row),
    ("continuous", "More slots, less time", "64 mixed requests", more_slots),
    ("paged", "Blocks in place of slots serve more", "1.26 -> 3.90 requests/s, 3.1 x", lambda ladder: ratio(ladder, "paged", "continuous", 3.1)),
    ("paged", "In a small pool (0.5 GiB) blocks hold more sequences", "64 mixed requests", paged_pool),
    ("chunked", "Prompts in chunks keep the others' tokens coming", "worst gap 2,874 -> 77.5 ms", chunks_bound_gaps),
    ("chunked", "The chunk is the price of a gap", "smaller chunks, smaller gaps", chunk_budget),
    ("chunked", "and serve more, without padding", "3.90 -> 4.08 requests/s, 1.05 x", lambda ladder: ratio(ladder, "chunked", "paged", 1.05)),
    ("fused", "One forward for prompts and decoding", "4.08 -> 4.53 requests/s, 1.11 x", lambda ladder: ratio(ladder, "fused", "chunked", 1.11)),
    ("flash", "Decode attention split over its keys", "4.53 -> 5.68 requests/s, 1.25 x", lambda ladder: ratio(ladder, "flash", "fused", 1.25)),
    ("ridge", "Replayed steps, one ahead, leave no launches", "not built there: about 16 of 24 ms a step", graphs),
    ("ridge", "Common beginnings are computed once", "not built there", prefix_cache),
    ("ridge", "Goodput: p99 TTFT <= 500 ms, p99 ITL <= 25 ms", "not measured there", goodput),
    ("all", "Every engine gives naive's tokens", "70 runs of naive and cached", same_tokens),
]


def parts_table(ladder):
    rows = []
    for engine, claim, there, find in PARTS:
        try:
            here, verdict = find(ladder)
        except (KeyError, ValueError, StopIteration, IndexError, ZeroDivisionError):
            here, verdict = MISSING
        rows.append([engine, claim, there, here, verdict])
    return table(["engine", "claim", "there", "here", "holds"], rows)


def engines_table(ladder):
    rows = []
    measured = [(engine, ladder.closed[engine], ladder.passes[engine]) for engine in ladder.folders]
    cached = ladder.control("prefix-cache", "ridge")
    measured.append(("ridge, prefix cache", records.closed(cached), records.open_passes(cached)))
    for engine, closed, passes in measured:
        batches = [f for f in closed.values() if f["batch"] > 1 and f["label"] != "mixed"]
        alone = closed.get("p256-x1")
        largest = max(batches, key=lambda f: f["tokens_per_s"], default=None)
        best = max(passes.items(), key=lambda item: item[1]["served_per_s"], default=None)
        if not (alone or largest or best):
            continue  # a peer that was measured otherwise
        rows.append([engine, f"{alone['ttft_ms']:.2f}" if alone else "", f"{alone['itl_p50_ms']:.2f}" if alone else "",
                     f"{largest['tokens_per_s']:,.0f} ({largest['batch']})" if largest else "",
                     f"{best[1]['served_per_s']:.2f} (of {best[0]:g})" if best else "", f"{best[1].get('gap_worst_ms', 0):.0f}" if best else ""])
    return table(["engine", "p256 alone: TTFT, ms", "ms a token", "most tokens/s (sequences)", "most requests served/s (of offered)", "worst gap there, ms"], rows)


def grades_of(folder, predicted):
    found = figures_of(folder)
    return [grade(predicted[kind][name][key], figures[key]) for kind in ("closed", "open") for name, figures in found[kind].items()
            if name in predicted.get(kind, {}) for key in (CLOSED_KEYS if kind == "closed" else OPEN_KEYS)]


def counts(grades):
    return [str(grades.count(kind)) for kind in ("hit", "near", "miss")]


def predictions_table(ladder):
    rows = []
    for name, folder in all_folders(ladder.root):
        if not (folder / "prediction.json").exists():
            continue
        predicted = prediction_of(folder)
        if "goodput_per_s" in predicted:
            grades = [grade(predicted["goodput_per_s"], records.goodput(folder)[0])]
        else:
            grades = grades_of(folder, predicted)
        rows.append([str(name), *counts(grades)])
    passes = [grade(predicted[key], figures[key]) for _, _, figures, predicted in overhead_grades(ladder.root) for key in predicted]
    if passes:
        rows.append(["a pass over one token", *counts(passes)])
    return table(["records", "within 10 %", "within 25 %", "missed"], rows)


def fill(page, text, name, content):
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"{page}: no place for the table {name}: <!-- {name} --> and <!-- end -->")
    return pattern.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("device", type=pathlib.Path)
    parser.add_argument("--cpu", type=pathlib.Path)
    arguments = parser.parse_args()
    ladder = Ladder(arguments.device)
    text = records.read_text(arguments.page)
    for name, content in (("parts", parts_table), ("engines", engines_table), ("predictions", predictions_table)):
        text = fill(arguments.page, text, name, content(ladder))
    if arguments.cpu:
        text = fill(arguments.page, text, "cpu", engines_table(Ladder(arguments.cpu)))
    arguments.page.write_text(text)
    print(arguments.page)


if __name__ == "__main__":
    main()
