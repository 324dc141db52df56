"""The command: `python -m afec.demo`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from afec.demo.rows import ROWS, SMOKE, Result, Row, Setting
from afec.demo.show import Watch, comparison_table, comparisons, draw, write_csv
from afec.demo.tuning import FIRST_SEED, TRIALS, best_of, tuning_table
from afec.demo.workers import RowError, available_cores, run_rows
from afec.streams import digits_regression

__all__ = ["main", "parse"]

ABOUT = """\
Learns two contradictory tasks one after the other on real images (scikit-learn's handwritten digits; nothing is
downloaded) and shows what each method remembers of the old task and learns of the new one: plain fine-tuning, EWC,
EWC at the compute that AFEC takes, and EWC with active forgetting (AFEC).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (by default those of the process) and return its exit code."""
    options = parse(arguments)
    # Where no terminal says how wide it is, lines must not be cut.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    setting = SMOKE if options.scale == "smoke" else Setting()
    if options.patience:
        setting = replace(setting, schedule=replace(setting.schedule, patience=options.patience))
    try:
        run = _tune if options.tune else _compare
        run(options, setting, console)
    except RowError as error:
        if error.__cause__ is not None:
            print(error.__cause__, file=sys.stderr)  # the worker's own traceback
        print(f"the demo failed in {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    return 0


def _compare(options: argparse.Namespace, setting: Setting, console: Console) -> None:
    seeds = range(options.seeds or 5)
    results = _run(ROWS, seeds, options.workers, setting, console)
    console.print(comparison_table(results))
    for sentence in comparisons(results):
        console.print(sentence, highlight=False)
    write_csv(options.out / "results.csv", results)
    draw(options.out / "circles.png", [result for result in results if result.seed == seeds[0]], setting)
    console.print(f"numbers: {options.out / 'results.csv'}\npicture: {options.out / 'circles.png'}", soft_wrap=True)


def _tune(options: argparse.Namespace, setting: Setting, console: Console) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + (options.seeds or 4))
    results = _run(TRIALS, seeds, options.workers, setting, console)
    console.print(tuning_table(results))
    used = {row.name: (row.strength, row.forgetting) for row in ROWS}
    for name, best in best_of(results).items():
        verdict = "as in the demo" if best == used[name] else f"the demo has λ={used[name][0]:g}, λ_e={used[name][1]:g}"
        console.print(f"{name}: best λ={best[0]:g}, λ_e={best[1]:g} ({verdict})", highlight=False)
    write_csv(options.out / "tuning.csv", results)
    console.print(f"numbers: {options.out / 'tuning.csv'}", soft_wrap=True)


def _run(rows: Sequence[Row], seeds: Sequence[int], workers: int, setting: Setting, console: Console) -> list[Result]:
    stream = digits_regression(seeds[0], train=setting.train, validation=setting.validation)
    print(f"{stream}\n{len(rows)} rows × {len(seeds)} seeds on {workers} processes", flush=True)
    start = time.monotonic()
    with Watch(console, len(rows) * len(seeds)) as watch:
        results = run_rows(rows, seeds, setting, workers, watch.on_result, watch.on_tick)
    print(f"computed in {time.monotonic() - start:.0f} s", flush=True)
    return results


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options that `arguments` give, by default those of the process; leaves with a message where they are wrong."""
    parser = argparse.ArgumentParser("python -m afec.demo", description=ABOUT)
    parser.add_argument("--seeds", type=_positive, help="how many seeds to average over (default: 5; 4 with --tune)")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-output"), help="where table and picture go (default: %(default)s/)"
    )
    parser.add_argument(
        "--workers",
        type=_positive,
        default=available_cores(),
        help="processes of one thread each (default: the cores, %(default)s)",
    )
    parser.add_argument(
        "--tune", action="store_true", help="repeat the tuning of the strengths, on validation images, instead"
    )
    parser.add_argument(
        "--patience", type=_positive, help="epochs without a better validation loss before the learning rate falls"
    )
    parser.add_argument(
        "--scale", choices=("full", "smoke"), default="full", help="smoke: a few seconds, numbers without meaning"
    )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number


if __name__ == "__main__":
    sys.exit(main())
