#!/usr/bin/env python3
"""Draws the figures of the ladder from the records of one device.

usage: bench/plot.py bench/results/DEVICE [--weights-ms MS] [--published]

Reads the folders of the engines under it and writes figures/*.svg there, with what `ridge-bench overhead` measured as a floor
(overhead-*.md). --weights-ms draws the floor that the weights and the
memory's bandwidth set (`ridge-bench roofline`); --published the series' points beside the measured ones.
"""
import argparse
import json
import pathlib
import sys

try:
    import matplotlib
except ModuleNotFoundError:
    sys.exit("plot.py: figures need matplotlib, which is not installed")

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

import ladder_records as records  # noqa: E402

PROMPTS = ["p16", "p64", "p256", "p1024", "p4096"]
COLORS = {engine: plt.get_cmap("tab10")(i) for i, engine in enumerate(records.ENGINES)}


class Figure:
    """One picture with `count` panels side by side."""

    def __init__(self, path, titles):
        self.path = path
        self.figure, axes = plt.subplots(1, len(titles), figsize=(5.2 * len(titles), 3.8), squeeze=False)
        self.axes = axes[0]
        self.drawn = False
        for axis, title in zip(self.axes, titles):
            axis.set_title(title, fontsize=10)
            axis.grid(alpha=0.25)

    def line(self, panel, x, y, engine, **style):
        if x:
            self.drawn = True
            self.axes[panel].plot(x, y, color=COLORS.get(engine), **({"label": engine, "marker": "o", "markersize": 3} | style))

    def published(self, panel, x, y, engine):
        """The series' points, in the engine's colour; named once in the legend."""
        axis = self.axes[panel]
        label = "published (an A10)"
        if label not in axis.get_legend_handles_labels()[1]:
            axis.plot([], [], label=label, color="grey", linestyle=":", marker="x")
        self.line(panel, x, y, engine, label="_", linestyle=":", marker="x")

    def save(self):
        if not self.drawn:
            plt.close(self.figure)
            return None
        for axis in self.axes:
            if axis.get_legend_handles_labels()[0]:
                axis.legend(fontsize=6, ncol=2, framealpha=0.6)
        self.figure.tight_layout()
        self.figure.savefig(self.path, metadata={"Date": None})
        plt.close(self.figure)
        return self.path


def by_prompt(out, engines, weights_ms, published, floors):
    figure = Figure(out / "prompt-length.svg", ["gap between tokens at batch 1, ms", "time to the first token, ms"])
    for engine, folder in engines:
        runs = {f["label"]: f for f in records.closed(folder).values() if f["batch"] == 1 and f["label"] in PROMPTS}
        labels = [label for label in PROMPTS if label in runs]
        x = [int(label[1:]) for label in labels]
        figure.line(0, x, [runs[label]["itl_p50_ms"] for label in labels], engine)
        figure.line(1, x, [runs[label]["ttft_ms"] for label in labels], engine)
    for engine, points in published.get("single", {}).items():
        x = [int(label[1:]) for label in points]
        figure.published(0, x, [1e3 / point["decode_tps"] for point in points.values()], engine)
        figure.published(1, x, [point["ttft_ms"] for point in points.values()], engine)
    for engine, contexts in floors.items():
        figure.line(0, list(contexts), [cost["pipelined_us"] / 1e3 for cost in contexts.values()], engine, label=f"{engine}: a pass over one token",
                    linestyle="-.", marker="", linewidth=1)
    for axis in figure.axes:
        axis.set(xscale="log", yscale="log", xlabel="prompt, tokens")
        if weights_ms:
            axis.axhline(weights_ms, color="grey", linestyle="--", linewidth=1, label="weights / bandwidth")
    return figure.save()


def by_batch(out, engines):
    figure = Figure(out / "batch-size.svg", ["generated tokens a second", "gap between tokens, ms"])
    label = ""
    for engine, folder in engines:
        closed = records.closed(folder)
        label = records.batch_label(closed)
        runs = sorted((f for f in closed.values() if f["label"] == label), key=lambda f: f["batch"])
        if len(runs) > 1:
            x = [run["batch"] for run in runs]
            figure.line(0, x, [run["tokens_per_s"] for run in runs], engine)
            figure.line(1, x, [run["itl_p50_ms"] for run in runs], engine)
    for axis in figure.axes:
        axis.set(xscale="log", yscale="log", xlabel=f"sequences of {label} handed over together")
    return figure.save()


def by_rate(out, engines, published):
    figure = Figure(out / "arrival-rate.svg", ["served requests a second", "wait in the queue, median, s",
                                               "time to the first token, p99, s"])
    for engine, folder in engines:
        passes = records.open_passes(folder)
        x = list(passes)
        figure.line(0, x, [f["served_per_s"] for f in passes.values()], engine)
        figure.line(1, x, [max(f["queue_p50_s"], 1e-4) for f in passes.values()], engine)
        figure.line(2, x, [f["ttft_p99_s"] for f in passes.values()], engine)
    for engine, points in published.get("served_per_s", {}).items():
        figure.published(0, [float(rate) for rate in points], list(points.values()), engine)
    if figure.drawn:
        top = figure.axes[0].get_xlim()[1]
        figure.axes[0].plot([0, top], [0, top], color="grey", linestyle="--", linewidth=1, label="offered")
    for axis in figure.axes:
        axis.set_xlabel("offered requests a second")
    for axis in figure.axes[1:]:
        axis.set_yscale("log")
    return figure.save()


def gap_distribution(out, engines):
    figure = Figure(out / "gaps.svg", ["gaps between tokens of a mixed batch: share that is longer"])
    for engine, folder in engines:
        mixed = [name for name in records.closed(folder) if name.startswith("mixed")]
        gaps = sorted(records.gaps_ms(folder, max(mixed, key=lambda name: int(name.rsplit("x", 1)[1])))) if mixed else []
        step = max(1, len(gaps) // 2000)
        points = [(gap, 1 - i / len(gaps)) for i, gap in enumerate(gaps) if i % step == 0 or i > len(gaps) - 50]
        figure.line(0, [p[0] for p in points], [p[1] for p in points], engine, marker="")
    figure.axes[0].set(xscale="log", yscale="log", xlabel="ms")
    return figure.save()


def step_budget(out, engines, weights_ms, floors):
    figure = Figure(out / "step-budget.svg", ["a decode step at batch 1, p256, ms"])
    names, values = [], []
    for engine, folder in engines:
        runs = [f for f in records.closed(folder).values() if f["label"] == "p256" and f["batch"] == 1]
        if runs:
            names.append(engine)
            values.append(runs[0]["itl_p50_ms"])
    if names:
        figure.drawn = True
        axis = figure.axes[0]
        axis.bar(names, values, color=[COLORS.get(name, "grey") for name in names])
        if weights_ms:
            axis.bar(names, [min(value, weights_ms) for value in values], color="black", alpha=0.35, label="weights / bandwidth")
        for engine, contexts in floors.items():
            if engine in names and 256 in contexts:
                host_ms = contexts[256]["submit_us"] / 1e3
                axis.bar([engine], [host_ms], width=0.3, fill=False, hatch="///", label="_" if engine != names[-1] else "the host's part, beside the card's")
        axis.tick_params(axis="x", rotation=30)
    return figure.save()


def whole_ladder(out, engines):
    figure = Figure(out / "ladder.svg", ["most requests served a second", "tokens a second of one stream, p256"])
    for panel in (0, 1):
        names, values = [], []
        for engine, folder in engines:
            served = [f["served_per_s"] for f in records.open_passes(folder).values()]
            single = [f["decode_tps"] for f in records.closed(folder).values() if f["label"] == "p256" and f["batch"] == 1]
            found = served if panel == 0 else single
            if found:
                names.append(engine)
                values.append(max(found))
        if names:
            figure.drawn = True
            bars = figure.axes[panel].barh(names[::-1], values[::-1], color=[COLORS.get(n, "grey") for n in names[::-1]])
            figure.axes[panel].bar_label(bars, fmt="%.3g", fontsize=8)
            figure.axes[panel].margins(x=0.12)  # room for the labels
    return figure.save()


def draw(root, weights_ms=None, published=None):
    """Writes what there are records for; returns the paths."""
    engines = records.ladder_folders(root)
    out = pathlib.Path(root) / "figures"
    out.mkdir(exist_ok=True)
    published = published or {}
    figures = [by_prompt(out, engines, weights_ms, published, records.overhead(root)), by_batch(out, engines), by_rate(out, engines, published),
               gap_distribution(out, engines), step_budget(out, engines, weights_ms, records.overhead(root)), whole_ladder(out, engines)]
    return [path for path in figures if path is not None]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--weights-ms", type=float)
    parser.add_argument("--published", action="store_true")
    arguments = parser.parse_args()
    if arguments.weights_ms is not None and not 0 < arguments.weights_ms < float("inf"):
        parser.error("--weights-ms: must be more than 0")
    if not arguments.root.is_dir():
        parser.error(f"{arguments.root}: no such folder")
    published = json.loads((pathlib.Path(__file__).parent / "traces" / "published.json").read_text()) if arguments.published else {}
    paths = draw(arguments.root, arguments.weights_ms, published)
    print("\n".join(str(path) for path in paths) or sys.exit(f"{arguments.root}: nothing to draw"))


if __name__ == "__main__":
    main()
