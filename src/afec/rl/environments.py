"""Games by name: suites of environments, each made as a vector of copies that step together.

    game = find_game("minatar", "Breakout")
    envs = game.make(8)                      # a gymnasium.vector.VectorEnv

Three suites: `minatar` (five small games; extra `rl`), `atari` (ale-py's own vector environment; the ROMs are in its wheel)
and `gymnasium` (any registered id with discrete actions, also `module:Name-v0` of your own). Nothing of them is imported before
a game is asked for.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from afec.naming import did_you_mean, unknown

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

__all__ = ["ATARI", "MINATAR", "SUITES", "Game", "Suite", "check_sequence", "find_game", "find_games"]

M_MMAP_THRESHOLD = -3
"""Of `mallopt`: from which size on a block is taken from the system."""

MINATAR = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
MINATAR_CHANNELS = 10
"""Of Seaquest, which has the most; the pictures of the other games are filled up with empty channels."""
ATARI = (
    "StarGunner",
    "Boxing",
    "VideoPinball",
    "CrazyClimber",
    "Gopher",
    "Robotank",
    "DemonAttack",
    "NameThisGame",
)
"""The paper's eight games; any other ROM of ale-py can be named as well."""


@dataclass(frozen=True)
class Suite:
    """Where a family of games comes from."""

    name: str
    description: str
    options: Mapping[str, Any]
    """Its options in [stream], with their defaults."""
    games: tuple[str, ...] = ()
    """The default sequence."""


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "minatar",
            "MinAtar's five games of 10×10 cells",
            {"version": 1, "sticky": 0.1, "ramping": True, "max_steps": 5000},
            MINATAR,
        ),
        Suite(
            "atari",
            "Atari 2600 games by ale-py, four grey frames of 84×84 pixels",
            {"noop_max": 30, "episodic_life": True, "clip_rewards": True, "sticky": 0.0, "max_steps": 27_000},
            ATARI,
        ),
        Suite(
            "gymnasium",
            "any environment of gymnasium's registry with discrete actions",
            {"pad": False, "max_steps": 0},
        ),
    )
}
"""`max_steps` is the longest episode, in steps of the agent; 0: as the environment says."""


@dataclass(frozen=True)
class Game:
    """One game of a suite: how its environments are made, and what is seen and done in them."""

    suite: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int = 0
    """Flat observations are filled up with zeros to this length; 0: they stay as they are."""

    def make(self, count: int, *, training: bool = True) -> VectorEnv[Any, Any, Any]:
        """So many copies that step together. What training changes (lives, clipped rewards) is left off for scores."""
        if count < 1:
            raise ValueError(f"{self.name}: expected at least 1 environment; got {count}")
        return {"minatar": _minatar, "atari": _atari, "gymnasium": _gymnasium}[self.suite](self, count, training)

    @cached_property
    def spaces(self) -> tuple[tuple[int, ...], np.dtype[Any], int]:
        """The shape and the type of an observation, and how many actions there are."""
        envs = self.make(1)
        try:
            seen, done = envs.single_observation_space, envs.single_action_space
            actions = getattr(done, "n", None)
            if actions is None or getattr(done, "start", 0) != 0 or not hasattr(seen, "shape") or seen.shape is None:
                raise ValueError(
                    f"the environment '{self.name}' has the actions {done} and the observations {seen}; expected "
                    "Discrete actions, counted from 0, and observations that are one array (Box): PPO here is for those. "
                    "Wrap the environment, or choose another"
                )
            return tuple(seen.shape), np.dtype(seen.dtype), int(actions)
        finally:
            envs.close()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an observation, as the net sees it."""
        return (self.width,) if self.width else self.spaces[0]

    @property
    def actions(self) -> int:
        """How many there are."""
        return self.spaces[2]

    def filled(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Observations at the width of the sequence."""
        missing = self.width - observations.shape[-1] if self.width else 0
        return np.pad(observations, ((0, 0), (0, missing))) if missing else observations


def find_game(suite: str, name: str, **options: Any) -> Game:
    """The game called `name` in a suite; a ValueError says what there is instead."""
    if suite not in SUITES:
        raise ValueError(unknown("suite of games", suite, SUITES))
    known = SUITES[suite].options
    for key in options:
        if key not in known:
            raise ValueError(
                f"{suite} has no option '{key}'{did_you_mean(key, known) or '.'} It has: {', '.join(known)}"
            )
    whole = {**known, **options}
    if suite == "minatar":
        found = _one_of("MinAtar game", name, MINATAR)
        _module("minatar")
    elif suite == "atari":
        found = _one_of("Atari game", name, map(_title, _roms()))
    else:
        found = _registered(name)
    return Game(suite, found, whole)


def find_games(suite: str, names: Sequence[str], **options: Any) -> list[Game]:
    """A sequence of games whose observations have one shape; `pad` fills up flat ones."""
    games = [find_game(suite, name, **options) for name in names]
    if games and games[0].options.get("pad") and all(len(game.spaces[0]) == 1 for game in games):
        widest = max(game.spaces[0][0] for game in games)
        games = [Game(game.suite, game.name, game.options, widest) for game in games]
    check_sequence(games)
    return games


def check_sequence(games: Sequence[Game]) -> None:
    """Raise unless one backbone can see all of these games."""
    if not games:
        raise ValueError('stream.games is empty; expected at least one name, such as games = ["Breakout"]')
    if twice := [game.name for place, game in enumerate(games) if game in games[:place]]:
        raise ValueError(f"stream.games has '{twice[0]}' twice; expected every game once")
    first = games[0]
    for game in games:
        kinds = [one.spaces[1].kind for one in (first, game)]
        if game.shape != first.shape or kinds[0] != kinds[1]:
            flat = len(game.shape) == len(first.shape) == 1
            raise ValueError(
                f"the games of a sequence share one backbone, so their observations must have one shape: '{first.name}' has "
                f"{first.shape} of {first.spaces[1]}, '{game.name}' has {game.shape} of {game.spaces[1]}. "
                + ("stream.pad=true fills up the shorter ones" if flat else "Wrap one of them, or choose others")
            )


def _one_of(what: str, name: str, valid: Iterable[str]) -> str:
    """The name as the suite writes it; case, spaces, dashes and underscores do not matter."""
    every = list(valid)
    plain = {re.sub(r"[\s_-]", "", one).lower(): one for one in every}
    found = plain.get(re.sub(r"[\s_-]", "", str(name)).lower())
    if found is None:
        raise ValueError(f"stream.games: {unknown(what, str(name), every)}")
    return found


def _module(name: str) -> Any:
    """A package of the extra `rl`."""
    try:
        logging.disable(logging.WARNING)  # minatar speaks of drawing packages that nobody needs here
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"games need the package {name.partition('.')[0]}: pip install 'afec[rl]' ({error})"
        ) from error
    finally:
        logging.disable(logging.NOTSET)


# -- gymnasium ----------------------------------------------------------------------------------------------------------


def _registered(name: str) -> str:
    """An id of gymnasium's registry."""
    gymnasium = _module("gymnasium")
    module, _, plain = name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"stream.games: '{name}': there is no module {module} to import ({error})") from error
    if plain not in gymnasium.registry:
        # The hundreds of names of other suites would bury the near ones.
        own = [key for key in gymnasium.registry if "/" not in key]
        near = did_you_mean(plain, own) or "."
        raise ValueError(
            f"stream.games: gymnasium knows no environment '{name}'{near} Known are, among others, CartPole-v1, Acrobot-v1, "
            "MountainCar-v0; an environment of your own is module:Name-v0, whose module registers it"
        )
    return name


def _gymnasium(game: Game, count: int, training: bool) -> VectorEnv[Any, Any, Any]:
    gymnasium = _module("gymnasium")
    limit = {"max_episode_steps": game.options["max_steps"]} if game.options["max_steps"] else {}
    same = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    envs: VectorEnv[Any, Any, Any] = gymnasium.make_vec(
        game.name, count, vectorization_mode="sync", vector_kwargs=same, **limit
    )
    return envs


# -- MinAtar ------------------------------------------------------------------------------------------------------------


def _minatar(game: Game, count: int, training: bool) -> VectorEnv[Any, Any, Any]:
    from afec.rl.minatar import MinAtarVector

    options, module = game.options, _module("minatar")
    name = re.sub(r"(?<!^)([A-Z])", r"_\1", game.name).lower()
    made = [
        module.Environment(name, sticky_action_prob=options["sticky"], difficulty_ramping=options["ramping"])
        for _ in range(count)
    ]
    return MinAtarVector(made, MINATAR_CHANNELS, minimal=options["version"] == 1, max_steps=options["max_steps"])


# -- Atari --------------------------------------------------------------------------------------------------------------


def _title(rom: str) -> str:
    return rom.title().replace("_", "")


def _roms() -> list[str]:
    return list(_module("ale_py.roms").get_all_rom_ids())


def _give_large_blocks_back() -> None:
    """Let the C library take large blocks from the system and give them back, whatever it has learned of their size.

    A net's input of frames is some MB. glibc before 2.38 often does not use a place again that an aligned block has
    left (its bug 14581), so every step takes new memory: 13 GB in 150,000 steps. Other C libraries have no `mallopt`.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)


def _atari(game: Game, count: int, training: bool) -> VectorEnv[Any, Any, Any]:
    _give_large_blocks_back()
    ale, vector, options = _module("ale_py"), _module("ale_py.vector_env"), game.options
    with suppress(AttributeError):
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    rom = next(one for one in _roms() if _title(one) == game.name)
    envs: VectorEnv[Any, Any, Any] = vector.AtariVectorEnv(
        rom,
        count,
        num_threads=1,
        noop_max=options["noop_max"],
        episodic_life=options["episodic_life"] and training,
        reward_clipping=options["clip_rewards"] and training,
        repeat_action_probability=options["sticky"],
        max_num_frames_per_episode=4 * options["max_steps"] or 2**31 - 1,
    )
    return envs
