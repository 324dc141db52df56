"""`afec play`: the agent of a finished run on one of its games, as moving pictures, or as the scores of episodes."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev

from rich.console import Console

from afec.experiments.games import AGENTS, Games, load_agent
from afec.lab import RunDirectory, RunError, SpecError
from afec.naming import unknown
from afec.rl.clip import KINDS, played, write_clip
from afec.rl.evaluation import episodes_of

__all__ = ["play"]

START = "start"
"""Of `--after`: before any learning."""


def play(
    console: Console,
    run: Path,
    game: str,
    after: str | None,
    out: Path | None,
    episodes: int,
    seed: int,
    sampled: bool,
    most: int,
) -> None:
    """Play one episode and write it, and play others for their returns."""
    if out is None and not episodes:
        raise SpecError("give --out clip.gif for moving pictures, or --episodes 30 for scores, or both")
    if out is not None and out.suffix not in KINDS:
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
    learned = len(names) if after is None else 0 if after == START else _number(after, names) + 1
    agent = f"{names[number]}, {config.label}, " + (f"after {names[learned - 1]}" if learned else "at the start")
    try:
        net, games = load_agent(config, run, directory.seed, learned)
        if out is not None:
            frames, total = played(net, number, games[number], seed, greedy=not sampled, most=most)
            write_clip(out, frames)
            text = f"{agent}, {len(frames)} steps, return {total:g}: {out}"
            console.print(text, highlight=False, soft_wrap=True)
        if episodes:
            found = episodes_of(net, number, games[number], episodes, seed, greedy=not sampled)
            actions = "drawn actions" if sampled else "the likeliest actions"
            spread = f" ± {stdev(found):.1f}, from {min(found):g} to {max(found):g}" if episodes > 1 else ""
            text = f"{agent}, {episodes} episodes by {actions}: mean return {mean(found):.1f}{spread}"
            console.print(text, highlight=False, soft_wrap=True)
    except ValueError as error:
        raise SpecError(str(error)) from error


def _number(name: str, names: list[str]) -> int:
    lower = [one.lower() for one in names]
    if name.lower() not in lower:
        raise SpecError(unknown("game of this run", name, names))
    return lower.index(name.lower())
