"""`afec play`: the agent of a finished run on one of its games, as moving pictures."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from afec.experiments.games import AGENTS, Games, load_agent
from afec.lab import RunDirectory, RunError, SpecError
from afec.naming import unknown
from afec.rl.clip import KINDS, played, write_clip

__all__ = ["play"]


def play(
    console: Console, run: Path, game: str, after: str | None, out: Path, seed: int, sampled: bool, most: int
) -> None:
    """Play one episode and write it."""
    if out.suffix not in KINDS:
        raise SpecError(f"--out {out}: expected a file name that ends in {' or '.join(KINDS)}")
    directory = RunDirectory(run)
    if not (run / "config.toml").is_file():
        raise RunError(f"{run} is no run directory; give one such as runs/minatar/ewc/0123456789ab/seed0")
    config = directory.config
    if not issubclass(config.kind, Games):
        raise SpecError(f"{run} is a run of the experiment '{config.experiment}', which has no games to play")
    if not (run / AGENTS).is_file():
        raise RunError(f"{run} has no {AGENTS}: the run is not finished; `afec resume` finishes it")
    names = config.stream["games"]
    number = _number(game, names)
    learned = len(names) if after is None else _number(after, names) + 1
    try:
        net, games = load_agent(config, run, directory.seed, learned)
        frames, total = played(net, number, games[number], seed, greedy=not sampled, most=most)
        write_clip(out, frames)
    except ValueError as error:
        raise SpecError(str(error)) from error
    ended = f"after {names[learned - 1]}, {len(frames)} steps, return {total:g}"
    console.print(f"{names[number]}, {config.label}, {ended}: {out}", highlight=False, soft_wrap=True)


def _number(name: str, names: list[str]) -> int:
    lower = [one.lower() for one in names]
    if name.lower() not in lower:
        raise SpecError(unknown("game of this run", name, names))
    return lower.index(name.lower())
