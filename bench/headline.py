"""Writes figures with a bar to bench/results/<processor>/headline.json; bench/README.md says what an entry holds."""
import datetime
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]


def processor():
    return re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text()).group(1)


def write_headline(device, command, figures):
    """As update(), of the sources as they are, on a device by its name."""
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", device.lower())).strip("-")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    update(ROOT / "bench/results" / slug / "headline.json", command, commit, figures)


def update(path, command, commit, figures):
    """figures: (name, value, unit, bar, baseline), the bar as ">= 0.7" or "<= 1.1". Newer ones replace older ones of the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = [{"name": name, "value": round(value, 3), "unit": unit, "bar": bar, "baseline": baseline, "command": command, "commit": commit,
            "date": datetime.date.today().isoformat()} for name, value, unit, bar, baseline in figures]
    merged = {figure["name"]: figure for figure in (json.loads(path.read_text()) if path.exists() else [])}
    for figure in new:
        known = merged.get(figure["name"])
        if known is None or (known["value"], known["commit"]) != (figure["value"], figure["commit"]):
            merged[figure["name"]] = figure  # what was measured before keeps its date
    path.write_text("[\n" + ",\n".join("  " + json.dumps(figure) for figure in merged.values()) + "\n]\n")
