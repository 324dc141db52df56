"""A method over a sequence of games, by PPO; a score is the return of an episode."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from afec.experiments.base import RETURN, Context, OnProgress, Progress, Score, Section, Setup
from afec.experiments.by_method import MethodExperiment, WithoutMethod, training_records
from afec.files import load_tree, save_tree
from afec.guard import Guard
from afec.learner import TaskRecord
from afec.learner.machine import check_device
from afec.methods.expression import METHODS, make_method
from afec.naming import did_you_mean, unknown, with_defaults
from afec.nets import NETS, check_backbone, make_backbone
from afec.randomness import forked, seed_from
from afec.rl.environments import SUITES, Game, find_games
from afec.rl.learner import GameLearner, Measuring, Update
from afec.rl.net import GameNet
from afec.rl.ppo import PPO
from afec.strategy import Strategy, as_strategy
from afec.whole_files import write_text

__all__ = ["AGENTS", "CURVE", "DORMANT", "Games", "ScratchGames", "load_agent", "new_game_net"]

AGENTS = "agents.safetensors"
"""The weights after each game: what `afec play` needs of a finished run."""
CURVE = "curve.csv"
"""The evaluations on the way: while which game, after how many updates and steps of it, which game was worth what."""
DORMANT = "dormant.csv"
"""How many units of each hidden layer no state of a game makes fire, after each game."""


@dataclass(frozen=True)
class Device:
    """Where the nets of games are run, and in which memory format."""

    device: str = "cpu"
    channels_last: bool = True

    def __post_init__(self) -> None:
        check_device(self.device)


def games_of(stream: Section) -> list[Game]:
    """The games that a [stream] section names."""
    options = {key: value for key, value in stream.items() if key not in ("name", "games")}
    return find_games(stream["name"], stream["games"], **options)


def new_game_net(setup: Setup, games: Sequence[Game], seed: int) -> GameNet:
    """The seed's net before any learning: the same for every method."""
    options = {key: value for key, value in setup.net.items() if key != "name"}
    if "inputs" in NETS[setup.net["name"]].options:
        options.setdefault("inputs", math.prod(games[0].shape))
    with forked(seed_from("net", seed)):
        net = GameNet(make_backbone(setup.net["name"], **options), [game.actions for game in games])
    try:
        with torch.no_grad():
            net.policy(torch.zeros((1, *games[0].shape)), 0)
    except RuntimeError as error:
        raise ValueError(
            f"the net '{setup.net['name']}' does not take the observations of {games[0].name}, of shape {games[0].shape}: "
            f"{error}. net.name=mlp takes any shape"
        ) from error
    return net


class Games(MethodExperiment):
    """A method over games, one after the other."""

    description = "PPO learns the games of a sequence, one after the other, under a method's guard"
    score = RETURN
    references: ClassVar[Mapping[str, str]] = {"scratch": "afec.experiments.games:ScratchGames"}

    def __init__(self, setup: Setup, context: Context) -> None:
        super().__init__(setup, context)
        training = setup.training | ({"device": context.device} if context.device else {})
        self.settings, self.measuring, self.place = training_records(training, PPO, Measuring, Device)
        self.games = games_of(setup.stream)
        self.tasks = [game.name for game in self.games]
        self.agents = list[dict[str, Any]]()
        self._on_progress: OnProgress = lambda progress: None
        self.learner = self._learner()

    def _learner(self) -> GameLearner:
        net = new_game_net(self.setup, self.games, self.context.seed).to(self.place.device)
        if self.place.channels_last:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        method, seed = self._method(), seed_from("games", self.context.seed)
        return GameLearner(net, self.games, method, self.settings, self.measuring, seed, self._tell, self.context.stop)

    def _method(self) -> Strategy | Guard | None:
        return make_method(self.setup.method, self.setup.settings)

    def _tell(self, update: Update) -> None:
        name = self.tasks[update.game]
        self._on_progress(Progress(update.game, name, update.phase, update.number, "update", update.values))

    # -- a run ----------------------------------------------------------------------------------------------------

    def learn(self, number: int, on_progress: OnProgress) -> TaskRecord:
        """The game."""
        self._on_progress = on_progress
        record = self.learner.learn(number)
        self.agents.append({name: value.detach().clone() for name, value in self.learner.net.state_dict().items()})
        return record

    def measure(self, after: int) -> list[Score]:
        """All games so far; before the first, every one."""
        return [self._score(after, number) for number in range(after or len(self.games))]

    def _score(self, after: int, number: int) -> Score:
        episodes, more = self.measuring.episodes, self.measuring.validation_episodes
        test = self.learner.score(number, episodes, "test")
        validation = self.learner.score(number, more, "validation") if more else math.nan
        return Score(after, number + 1, self.tasks[number], validation, test, episodes)

    def state_dict(self) -> dict[str, Any]:
        """The learner's, and the weights after each game."""
        return {"learner": self.learner.state_dict(), "agents": self.agents}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; where it does not fit, everything is as before."""
        try:
            self.learner.load_state_dict(state["learner"])
        except Exception:  # a part of it may be in the net
            self.learner = self._learner()
            raise
        self.agents = list(state["agents"])

    def finish(self, folder: Path, on_progress: OnProgress) -> None:
        """The agents after each game, the learning curves, and the dormant units."""
        save_tree(folder / AGENTS, {"games": list(self.tasks), "after": self.agents})
        batch = self.settings.batch
        rows = [[game, update, update * batch, seen, f"{value:.6f}"] for game, update, seen, value in self._curve()]
        _write(folder / CURVE, ["game", "update", "steps", "evaluated", "return"], rows)
        found = enumerate(self._dormant(), start=1)
        counts = [[after, name, *pair] for after, layers in found for name, pair in layers.items()]
        _write(folder / DORMANT, ["after", "layer", "dormant", "units"], counts)

    def _curve(self) -> list[tuple[int, int, int, float]]:
        return self.learner.curve

    def _dormant(self) -> list[dict[str, tuple[int, int]]]:
        return self.learner.dormant

    # -- what may stand in a benchmark ----------------------------------------------------------------------------

    @classmethod
    def complete(cls, section: str, values: Section) -> Section:
        """The suite, its games and options; the net; PPO, what is measured, and the device."""
        if section == "training":
            records = training_records(values, PPO, Measuring, Device)
            return {key: value for record in records for key, value in asdict(record).items()}
        if section == "net":
            check_backbone(values)
            return with_defaults(NETS, values)
        suite = values.get("name")
        if not isinstance(suite, str) or suite not in SUITES:
            raise ValueError(f"stream.name: {unknown('suite of games', str(suite), SUITES)}")
        known = SUITES[suite]
        for key in values.keys() - {"name", "games", *known.options}:
            near = did_you_mean(key, known.options) or "."
            raise ValueError(f"stream.{key}: {suite} has no such option{near} It has: {', '.join(known.options)}")
        games = values.get("games", list(known.games))
        if not isinstance(games, list) or not games or not all(isinstance(name, str) for name in games):
            raise ValueError(f'stream.games: expected a list of names, such as ["Breakout"]; got {games!r}')
        for key, default in known.options.items():
            given = values.get(key, default)
            number = isinstance(default, float) and type(given) in (int, float)
            if not number and type(given) is not type(default):
                raise ValueError(f"stream.{key}: expected a value such as {json.dumps(default)}; got {given!r}")
        return {"name": suite, "games": games, **known.options, **values}

    @classmethod
    def complete_method(cls, method: str, settings: dict[str, Section]) -> tuple[str, dict[str, Section]]:
        """Guards, and strategies that need no labelled data; with strengths that are numbers."""
        for term in cls.terms(method):
            make = METHODS[term].make
            if issubclass(make, Strategy) and not make.learns_games:
                raise ValueError(
                    f"{METHODS[term].name} is a strategy: its trainings are on labelled data, and PPO's are rollouts, "
                    "so it cannot learn games. ags-cl can, and so can guards: ewc, mas, si, rwalk, recycle, prior; each "
                    "with +afec"
                )
            if settings.get(term, {}).get("strength") == "auto":
                raise ValueError(
                    f"{term}: strength='auto' compares losses, and those of two rollouts say nothing about "
                    "each other; give a number"
                )
        return super().complete_method(method, settings)

    @classmethod
    def check(cls, setups: Sequence[Setup], context: Context) -> list[str]:
        """Make the games and the net of each setup once, send one observation through it, and ask each method for it."""
        nets: dict[str, GameNet] = {}
        for setup in setups:
            key = repr((setup.stream, setup.net))
            if key not in nets:
                nets[key] = new_game_net(setup, games_of(setup.stream), context.seed)
            if cls.terms(setup.method):
                as_strategy(make_method(setup.method, setup.settings)).check(nets[key])
        return []

    @classmethod
    def for_tuning(cls, setup: Setup, context: Context) -> Setup:
        """With as many validation episodes as a score has, by other seeds."""
        training = setup.training
        many = training["validation_episodes"] or training["episodes"]
        return replace(setup, training={**training, "validation_episodes": many, "evaluations": 0})

    @classmethod
    def validation_sizes(cls, setup: Setup, context: Context) -> list[int]:
        """Episodes are no samples of a fraction: how noisy a choice is, the seeds tell."""
        return []


class ScratchGames(WithoutMethod, Games):
    """Each game alone, from the random initial weights: the reference of forward transfer."""

    description = "each game alone from the random initial weights: the reference of fwt_vs_scratch"
    is_reference = True

    def _method(self) -> None:
        return None

    def learn(self, number: int, on_progress: OnProgress) -> TaskRecord:
        """The game alone; one that was loaded in its middle goes on."""
        if not self.learner.resumed:
            fresh = new_game_net(self.setup, self.games, self.context.seed)
            self.learner.net.load_state_dict(fresh.state_dict())
            self.learner.optimizer_state = None
        return super().learn(number, on_progress)

    def measure(self, after: int) -> list[Score]:
        """Its own game; before the first, every one."""
        return super().measure(0) if after == 0 else [self._score(after, after - 1)]

    def _curve(self) -> list[tuple[int, int, int, float]]:
        return [point for point in self.learner.curve if point[0] == point[2]]  # the net knows its own game only


def load_agent(setup: Setup, folder: Path, seed: int, after: int) -> tuple[GameNet, list[Game]]:
    """The agent of a finished run as it was after so many games, 0 of them included, and the games."""
    games = games_of(setup.stream)
    net = new_game_net(setup, games, seed)
    if after:
        net.load_state_dict(load_tree(folder / AGENTS)["after"][after - 1])
    return net, games


def _write(file: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(file, text.getvalue())
