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
    """figures: (name, value, unit, bar, baseline), the bar as ">= 0.7" or "<= 1.1". Newer ones replace older ones of the same name."""
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", device.lower())).strip("-")
    path = ROOT / "bench/results" / slug / "headline.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    new = [{"name": name, "value": round(value, 3), "unit": unit, "bar": bar, "baseline": baseline, "command": command, "commit": commit,
            "date": datetime.date.today().isoformat()} for name, value, unit, bar, baseline in figures]
    names = {figure["name"] for figure in new}
    old = json.loads(path.read_text()) if path.exists() else []
    merged = [figure for figure in old if figure["name"] not in names] + new
    path.write_text("[\n" + ",\n".join("  " + json.dumps(figure) for figure in merged) + "\n]\n")
