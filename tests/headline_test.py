"""Every headline figure has the form that bench/README.md gives, every file the one that headline.py writes."""
import datetime
import json
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
import headline  # noqa: E402

FIELDS = ["name", "value", "unit", "bar", "baseline", "command", "commit", "date"]


def problems(figures):
    if not isinstance(figures, list):
        return ["not a list"]
    found = []
    names = [figure.get("name") for figure in figures]
    found += [f"{name} twice" for name in sorted(set(names)) if names.count(name) > 1]
    for figure in figures:
        name = figure.get("name")
        if sorted(figure) != sorted(FIELDS):
            found.append(f"{name}: fields {sorted(figure)}")
            continue
        if isinstance(figure["value"], bool) or not isinstance(figure["value"], (int, float)):
            found.append(f"{name}: value")
        found += [f"{name}: {field}" for field in FIELDS if field != "value" and not isinstance(figure[field], str)]
        if not re.fullmatch(r"[<>]= \d+(\.\d+)?", str(figure["bar"])):
            found.append(f"{name}: bar")
        if not re.fullmatch(r"[0-9a-f]{7,40}", str(figure["commit"])):
            found.append(f"{name}: commit")
        try:
            datetime.date.fromisoformat(str(figure["date"]))
        except ValueError:
            found.append(f"{name}: date")
    return found


def form_problems(path):
    """What an update changes beside the figures that it brings."""
    figures = json.loads(path.read_text())
    if path.read_text() != headline.text_of(figures):
        return ["not as headline.py writes it"]
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / path.name
        copy.write_text(path.read_text())
        new = figures[-1] | {"value": figures[-1]["value"] + 1, "date": datetime.date.today().isoformat()}
        headline.update(copy, new["command"], new["commit"], [tuple(new[field] for field in ("name", "value", "unit", "bar", "baseline"))])
        before, after = path.read_text().splitlines(), copy.read_text().splitlines()
        changed = [line for line in after if line not in before]
        allowed = [line for line in changed if '"value"' in line or '"date"' in line]
        return [] if len(before) == len(after) and changed == allowed and changed else [f"an update of one figure changes {changed}"]


def main():
    files = sorted(ROOT.glob("bench/results/*/headline.json"))
    found = [f"{path.relative_to(ROOT)}: {problem}" for path in files for check in (lambda path: problems(json.loads(path.read_text())), form_problems)
             for problem in check(path)]
    found += [f"{value} is written as {headline.rounded(value)}" for value, want in ((0.00164, 0.00164), (0.123456, 0.1235), (11661577.3944, 11661577.394), (1.2345, 1.234), (0, 0))
              if headline.rounded(value) != want]
    print("\n".join(found) or f"{len(files)} files")
    sys.exit(1 if found or not files else 0)


if __name__ == "__main__":
    main()
