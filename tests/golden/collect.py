"""The numbers of finished runs as one JSON: `python tests/golden/collect.py RUNS > tests/golden/numbers.json`.

Read off the files of the run directories as they are, so that it does not depend on the code that is being changed.
"""

from __future__ import annotations

import csv
import json
import sys
import tomllib
from pathlib import Path


def numbers(runs: Path) -> dict[str, dict[str, object]]:
    """Scores and cost of each finished run, by benchmark, row, setting and seed."""
    found = {}
    for file in sorted(runs.rglob("config.toml")):
        if not (file.parent / "DONE").exists():
            continue
        config = tomllib.loads(file.read_text())
        label = config["method"] + (f"@{config['variant']}" if config["variant"] else "")
        setting = config["stream"].get("setting", "")
        key = " ".join(part for part in (config["benchmark"], label, setting, file.parent.name) if part)
        table = file.parent / "scores.csv"
        text = (table if table.exists() else file.parent / "accuracy.csv").read_text()
        events = [json.loads(line) for line in (file.parent / "events.jsonl").read_text().splitlines()]
        transfer = file.parent / "transfer.csv"
        found[key] = {
            "scores": [
                f"{r['after']},{r['task']},{r['validation']},{r['test']}" for r in csv.DictReader(text.splitlines())
            ],
            "samples": [event["samples"] for event in events if event["event"] == "task"],
            "epochs": [[e["epochs"], e["epochs_theta_e"], e["best_epoch"]] for e in events if e["event"] == "task"],
            "transfer": transfer.read_text().splitlines()[1:] if transfer.exists() else [],
        }
    return found


def machine(runs: Path) -> str:
    """Where they were made: bits are the same on one model of processor and one build of torch only."""
    from torch.backends.cpu import get_cpu_capability  # of this process: collect where the runs were made

    made = json.loads(next(iter(runs.rglob("env.json"))).read_text())
    return f"{made['processor']}, {get_cpu_capability()}, torch {made['torch']}"


if __name__ == "__main__":
    place = Path(sys.argv[1])
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in numbers(place).items())
    print(f'{{"machine": {json.dumps(machine(place))},\n"runs": {{\n{lines}\n}}}}')
