"""MinAtar's games as one vector environment that writes all pictures into one array.

gymnasium's own `SyncVectorEnv` around MinAtar's wrapper checks, copies and concatenates in every step; without that a step
costs what the games themselves take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

__all__ = ["MinAtarVector"]


class MinAtarVector(VectorEnv[Any, Any, Any]):
    """Copies of one game. An episode that ends begins anew in the same step; its last picture is in `info["final_obs"]`.

    Args:
        games: `minatar.Environment` objects of one game.
        channels: of the pictures; a game with fewer leaves the last ones empty.
        minimal: only the actions that do something in this game (the `v1` of MinAtar's gymnasium ids), or all six (`v0`).
        max_steps: where an episode is cut; 0: never.
    """

    def __init__(self, games: Sequence[Any], channels: int, *, minimal: bool, max_steps: int) -> None:
        self.games, self.max_steps, self.num_envs = list(games), max_steps, len(games)
        self.moves = games[0].minimal_action_set() if minimal else list(range(games[0].num_actions()))
        self.single_observation_space = spaces.Box(0, 1, (channels, 10, 10), dtype=np.bool_)
        self.single_action_space = spaces.Discrete(len(self.moves))
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.used = games[0].state_shape()[2]
        self.taken = np.zeros(self.num_envs, dtype=np.int64)
        # Cells first, channels last, as the games draw: the picture is seen as (channels, 10, 10) without a copy.
        self.pictures = np.zeros((self.num_envs, 10, 10, channels), dtype=np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """All games from their beginning; copy i is seeded with seed + i."""
        for place, game in enumerate(self.games):
            if seed is not None:
                game.seed((int(seed) + place) % 2**32)
                game.last_action = 0
            game.reset()
            self.pictures[place, ..., : self.used] = game.state()
        self.taken[:] = 0
        return self._seen(), {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """One step of each."""
        rewards, ended = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        self.taken += 1
        cut = self.taken >= self.max_steps if self.max_steps else np.zeros(self.num_envs, dtype=np.bool_)
        last: dict[int, NDArray[Any]] = {}
        for place, game in enumerate(self.games):
            rewards[place], ended[place] = game.act(self.moves[actions[place]])
            if ended[place] or cut[place]:
                last[place] = self._padded(game.state())
                game.reset()
                self.taken[place] = 0
            self.pictures[place, ..., : self.used] = game.state()
        info: dict[str, Any] = {}
        if last:
            info["final_obs"] = np.empty(self.num_envs, dtype=object)
            for place, picture in last.items():
                info["final_obs"][place] = picture
            info["_final_obs"] = ended | cut
        return self._seen(), rewards, ended, cut & ~ended, info

    def close(self, **arguments: Any) -> None:
        """Nothing is open."""

    def _seen(self) -> NDArray[Any]:
        return self.pictures.copy().transpose(0, 3, 1, 2)

    def _padded(self, state: NDArray[Any]) -> NDArray[Any]:
        picture = np.zeros(self.pictures.shape[1:], dtype=np.bool_)
        picture[..., : self.used] = state
        return picture.transpose(2, 0, 1)
