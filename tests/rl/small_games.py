"""Games that are worked out by hand: each is registered with gymnasium as `small_games:Name-v0`."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Count(gymnasium.Env):
    """Shows how many steps were taken, pays the action, and ends after `length` steps, by an end or by a cut."""

    def __init__(self, length=3, ends=True, fault=0, broken=0, wild=False, width=2, pay=1.0):
        self.observation_space = spaces.Box(-10, 100, (width,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.ends, self.fault, self.broken, self.wild = length, ends, fault, broken, wild
        self.all_steps, self.pay = 0, pay

    def _seen(self):
        seen = np.zeros(self.observation_space.shape, np.float32)
        seen[0] = self.taken + (np.random.rand() if self.wild else 0)
        seen[-1] = self.luck
        return seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken, self.luck = 0, self.np_random.random()
        return self._seen(), {}

    def step(self, action):
        self.taken += 1
        self.all_steps += 1
        if self.fault and self.all_steps >= self.fault:
            raise OSError("the joystick is gone")
        over = self.taken >= self.length
        reward = self.pay * float(action)
        reward = float("nan") if self.broken and self.all_steps >= self.broken else reward
        return self._seen(), reward, over and self.ends, over and not self.ends, {}


class Continuous(Count):
    """Takes a number where others take one of several actions."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)


for name, kind, options in (
    ("Count", Count, {}),
    ("Cut", Count, {"ends": False}),
    ("Long", Count, {"length": 50}),
    ("Fault", Count, {"fault": 100}),
    ("NoNumber", Count, {"broken": 30}),
    ("Wild", Count, {"wild": True}),
    ("Wide", Count, {"width": 5}),
    ("Burst", Count, {"pay": 1e30}),
    ("Continuous", Continuous, {}),
):
    if f"{name}-v0" not in gymnasium.registry:
        gymnasium.register(f"{name}-v0", kind, kwargs=options, disable_env_checker=True)
