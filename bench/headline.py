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
    new = [{"name": name, "value": rounded(value), "unit": unit, "bar": bar, "baseline": baseline, "command": command, "commit": commit,
            "date": datetime.date.today().isoformat()} for name, value, unit, bar, baseline in figures]
    merged = {figure["name"]: figure for figure in (json.loads(path.read_text()) if path.exists() else [])}
    for figure in new:
        known = merged.get(figure["name"])
        if known is None or (known["value"], known["commit"]) != (figure["value"], figure["commit"]):
            merged[figure["name"]] = figure  # what was measured before keeps its date
    path.write_text(text_of(list(merged.values())))


def rounded(value):
    """Three decimals, and four digits of what is below 1: a small share keeps its figures."""
    return round(value, 3) if abs(value) >= 1 else float(f"{value:.4g}")


def text_of(figures):
    """The one form of these files: a line a field, so that a change shows what it changed."""
    return json.dumps(figures, indent=1, ensure_ascii=False) + "\n"
