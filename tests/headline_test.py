"""Every headline figure has the form that bench/README.md gives."""
import datetime
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
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


def main():
    files = sorted(ROOT.glob("bench/results/*/headline.json"))
    found = [f"{path.relative_to(ROOT)}: {problem}" for path in files for problem in problems(json.loads(path.read_text()))]
    print("\n".join(found) or f"{len(files)} files")
    sys.exit(1 if found or not files else 0)


if __name__ == "__main__":
    main()
