"""Environments of one game in play: what they show now, and how to get back there.

No environment can be asked for its whole state. But each is a function of its seed and of the actions taken, so a player keeps
these, and a fresh process plays them again without a net: the same state bit for bit, in a fraction of the time.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor

from afec.rl.environments import Game

__all__ = ["EnvironmentFaultError", "Moved", "Player", "as_tensor"]


class EnvironmentFaultError(RuntimeError):
    """An environment has raised, or shows or pays what is no number."""


class Moved(NamedTuple):
    """What one step of all environments came to."""

    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    """The episode is over: nothing comes after it."""
    truncated: NDArray[np.bool_]
    """The episode was cut: what would have come after it is worth the value of its last observation."""
    real: NDArray[np.bool_]
    """False where this was no step but a reset, under the autoreset mode NEXT_STEP."""
    last: dict[int, NDArray[Any]]
    """The last observations of episodes that ended, where the next episode is shown already (SAME_STEP)."""


class Player:
    """Copies of one game, their present observations, and the returns of finished episodes.

    Args:
        game: what is played.
        count: how many copies.
        seed: of copy 0; copy i has seed + i.
        training: whether lives end episodes and rewards are clipped, where the suite does so for training.
    """

    def __init__(self, game: Game, count: int, seed: int, *, training: bool = True) -> None:
        self.game, self.count, self.seed = game, count, seed % 2**31
        self.envs = game.make(count, training=training)
        mode = self.envs.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(f"{game.name}: expected the autoreset mode SAME_STEP or NEXT_STEP; got {mode}")
        self.next_step = mode == AutoresetMode.NEXT_STEP
        self.begin()

    def begin(self) -> None:
        """All copies from the start."""
        self.observations = self._seen(lambda: self.envs.reset(seed=self.seed)[0])
        self.resetting = np.zeros(self.count, dtype=np.bool_)
        self.running = np.zeros(self.count)
        self.finished = list[float]()
        self.actions = list[NDArray[np.int16]]()

    def step(self, actions: NDArray[np.int64]) -> Moved:
        """One step of each copy."""
        self.actions.append(actions.astype(np.int16))
        found: list[Any] = []

        def move() -> NDArray[Any]:
            found.extend(self.envs.step(actions))
            return found[0]  # type: ignore[no-any-return]

        self.observations = self._seen(move)
        _, rewards, terminated, truncated, info = found
        real = ~self.resetting
        rewards = np.where(real, rewards, 0.0)
        if not np.isfinite(rewards).all():
            raise EnvironmentFaultError(
                f"the game {self.game.name} paid a reward of {rewards[~np.isfinite(rewards)][0]} in step {len(self.actions)}; "
                "expected finite numbers"
            )
        terminated, truncated = np.asarray(terminated) & real, np.asarray(truncated) & real & ~np.asarray(terminated)
        ended = terminated | truncated
        self.running += rewards
        self.finished += self.running[ended].tolist()
        self.running[ended] = 0.0
        last = {}
        if self.next_step:
            self.resetting = ended
        elif ended.any():
            shown = info["final_obs"]
            last = {int(i): self.game.filled(np.asarray(shown[i])[None])[0] for i in np.flatnonzero(ended)}
        return Moved(rewards, terminated, truncated, real, last)

    def returns(self) -> list[float]:
        """Of the episodes that have ended since this was last asked."""
        found, self.finished = self.finished, []
        return found

    def close(self) -> None:
        """End the environments."""
        self.envs.close()

    def state_dict(self) -> dict[str, Any]:
        """The actions so far, and what is seen now, to compare."""
        none = np.zeros((0, self.count), dtype=np.int16)
        return {
            "actions": torch.from_numpy(np.stack(self.actions) if self.actions else none),
            "observations": as_tensor(self.observations).clone(),
            "finished": list(self.finished),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Play the actions again."""
        self.begin()
        for actions in state["actions"].numpy():
            self.step(actions.astype(np.int64))
        self.finished = list(state["finished"])
        if not torch.equal(as_tensor(self.observations), state["observations"]):
            warnings.warn(
                f"the game {self.game.name} did not come to the same observations by the same seed and actions, so this run "
                "goes on, but not bit for bit as it would have; an environment must draw from its own generator only, the one "
                "that reset(seed=…) seeds",
                RuntimeWarning,
                stacklevel=2,
            )

    def _seen(self, do: Any) -> NDArray[Any]:
        try:
            seen = do()
        except Exception as error:
            at = f"in step {len(self.actions)}" if hasattr(self, "actions") else "when it was reset"
            raise EnvironmentFaultError(
                f"the game {self.game.name} raised {type(error).__name__} {at}: {error}. The last checkpoint is whole; "
                "`afec resume` goes on from it once the environment is mended"
            ) from error
        return self.game.filled(np.asarray(seen))


def as_tensor(observations: NDArray[Any]) -> Tensor:
    """Observations as they are stored: bool and bytes stay, other numbers are float32."""
    narrow = observations if observations.dtype in (np.bool_, np.uint8) else observations.astype(np.float32, copy=False)
    return torch.from_numpy(narrow)
