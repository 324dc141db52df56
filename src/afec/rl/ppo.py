"""PPO, proximal policy optimisation (Schulman et al. 2017): the whole algorithm, from top to bottom.

    r = π(a|s) / π_old(a|s),     L = −mean min(r·A, clip(r, 1−ε, 1+ε)·A) + c_v·½·mean max((V−R)², (V_clip−R)²) − c_e·mean H(π)
    δ_t = r_t + γ·V(s_{t+1}) − V(s_t),     A_t = δ_t + γλ·A_{t+1},     R_t = A_t + V(s_t)           (GAE)

`collect` plays, `advantages` looks back, `improve` learns: an update. Nothing here knows of tasks or guards. A guard's pull is
added inside `optimizer.step()`, after the gradient of the loss was clipped: it is never clipped itself.

Where an episode ends, V(s_{t+1}) is 0 if it was terminated and the value of its last observation if it was cut, and A does not
reach over the end. Under gymnasium's autoreset mode SAME_STEP that observation is in the info; under NEXT_STEP it is the next
one, and the step after it is a reset, in which no action counts: it is left out of all losses.

The value's loss has the ½ that the critic's weight `value_weight` stands in front of; Stable-Baselines3 has none, so its
`vf_coef` 0.5 is 1.0 here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from afec.rl.net import GameNet
from afec.rl.player import Player, as_tensor

__all__ = [
    "PPO",
    "DivergedError",
    "Rollout",
    "Steps",
    "Terms",
    "advantages",
    "collect",
    "improve",
    "new_adam",
    "ppo_terms",
]


class DivergedError(FloatingPointError):
    """A loss became infinite or no number."""


@dataclass(frozen=True)
class PPO:
    """The settings of the algorithm."""

    steps: int = 1_000_000
    """How long each game is learned, in steps of all its environments together; whole updates, at least one."""
    environments: int = 8
    """How many copies of the game step together."""
    rollout: int = 128
    """Steps of each copy between two updates."""
    epochs: int = 4
    """Passes over the rollout in an update."""
    minibatches: int = 4
    """Parts of the rollout that a pass is cut into."""
    lr: float = 2.5e-4
    lr_decay: bool = True
    """Whether the learning rate falls linearly over the updates of a game, to almost 0."""
    gamma: float = 0.99
    """γ, the discount."""
    gae_lambda: float = 0.95
    """λ of the generalised advantage estimate."""
    clip: float = 0.2
    """ε: how far a probability may move in an update."""
    value_clip: float = 0.2
    """The same for values; 0 switches it off."""
    value_weight: float = 0.5
    entropy: float = 0.01
    """The weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Longer gradients of the loss are cut to this length, before the pull is added; 0 switches it off."""
    normalise_advantages: bool = True
    """Whether the advantages of each minibatch get mean 0 and standard deviation 1."""
    adam_eps: float = 1e-5
    carry_optimizer: bool = False
    """Whether Adam's moments are kept from game to game, as the released code does."""

    def __post_init__(self) -> None:
        least = {"steps": 1, "environments": 1, "rollout": 1, "epochs": 1, "minibatches": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}; got {getattr(self, name)}")
        for name in ("lr", "clip", "adam_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number > 0; got {getattr(self, name)}")
        for name in ("value_clip", "value_weight", "entropy", "max_grad_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number ≥ 0; got {getattr(self, name)}")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1]; got {getattr(self, name)}")
        if self.minibatches > self.batch:
            raise ValueError(
                f"minibatches must be at most the {self.batch} steps of a rollout ({self.environments} environments × "
                f"{self.rollout} steps); got {self.minibatches}"
            )

    @property
    def batch(self) -> int:
        """The steps of one rollout of all environments."""
        return self.environments * self.rollout

    @property
    def updates(self) -> int:
        """How many updates a game has."""
        return max(1, self.steps // self.batch)

    def lr_at(self, update: int) -> float:
        """The learning rate of an update, counted from 0."""
        return self.lr * (1 - update / self.updates) if self.lr_decay else self.lr


class Steps(NamedTuple):
    """Steps of a game, as they are learned from: a row each."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    """Of the actions, by the policy that chose them."""
    values: Tensor
    """Of the observations, by the critic of that time."""
    advantages: Tensor
    returns: Tensor

    def at(self, rows: Tensor) -> Steps:
        """Some of them."""
        return Steps(*(part[rows] for part in self))


class Rollout(NamedTuple):
    """What `collect` has seen, by step and environment."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    next_values: Tensor
    """Of what came after the step, whether or not an episode ended there."""
    rewards: Tensor
    terminated: Tensor
    ended: Tensor
    """Terminated or cut."""
    real: Tensor
    """False for a reset."""

    def steps(self, settings: PPO) -> Steps:
        """The real steps, with their advantages and returns."""
        found = advantages(
            self.rewards,
            self.values,
            self.next_values,
            self.terminated,
            self.ended,
            settings.gamma,
            settings.gae_lambda,
        )
        parts = (self.observations, self.actions, self.log_probs, self.values, found, found + self.values)
        flat = Steps(*(part.flatten(0, 1) for part in parts))
        return flat if bool(self.real.all()) else flat.at(self.real.flatten().nonzero().squeeze(1))


@torch.no_grad()
def collect(net: GameNet, game: int, player: Player, steps: int, generator: torch.Generator) -> Rollout:
    """Play so many steps in each environment, with actions drawn from the policy."""
    device = next(net.parameters()).device
    shape = steps, player.count
    rewards, real = np.zeros(shape, dtype=np.float32), np.ones(shape, dtype=np.bool_)
    terminated, ended = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    log_probs, values, next_values = (torch.zeros(shape) for _ in range(3))
    actions, observations = torch.zeros(shape, dtype=torch.int64), _room_for(as_tensor(player.observations), steps)
    cut: dict[tuple[int, int], NDArray[np.generic]] = {}
    for step in range(steps):
        seen = as_tensor(player.observations)
        logits, value = net.policy(seen.to(device), game)
        log = logits.log_softmax(dim=1).cpu()
        # The index of the largest p/e, with e exponential, is a draw from p.
        draws = torch.empty_like(log).exponential_(generator=generator)
        chosen = (log - draws.log()).argmax(dim=1)
        observations[step] = seen
        actions[step], values[step] = chosen, value
        log_probs[step] = log.gather(1, chosen[:, None]).squeeze(1)
        moved = player.step(chosen.numpy())
        rewards[step], real[step], terminated[step] = moved.rewards, moved.real, moved.terminated
        ended[step] = moved.terminated | moved.truncated
        cut |= {(step, place): last for place, last in moved.last.items() if moved.truncated[place]}
    next_values[:-1] = values[1:]
    next_values[-1] = net.policy(as_tensor(player.observations).to(device), game)[1]
    if cut:
        lasts = as_tensor(np.stack(list(cut.values())))
        for (step, place), value in zip(cut, net.policy(lasts.to(device), game)[1], strict=True):
            next_values[step, place] = value
    flags = (torch.from_numpy(part) for part in (rewards, terminated, ended, real))
    return Rollout(observations, actions, log_probs, values, next_values, *flags)


def _room_for(seen: Tensor, steps: int) -> Tensor:
    """Room for so many observations of all environments, laid out in memory as these are: nothing is turned round."""
    last = seen.dim() == 4 and seen.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    shape = steps * len(seen), *seen.shape[1:]
    return torch.empty(shape, dtype=seen.dtype, memory_format=layout).view(steps, *seen.shape)


def advantages(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, gamma: float, lam: float
) -> Tensor:
    """The generalised advantage estimate, by step and environment."""
    going = 1.0 - terminated.float()
    delta = (rewards + gamma * next_values * going - values).numpy()
    keep = (gamma * lam * (1.0 - ended.float())).numpy()
    found, ahead = np.empty_like(delta), np.zeros_like(delta[0])
    for step in reversed(range(len(delta))):
        ahead = delta[step] + keep[step] * ahead
        found[step] = ahead
    return torch.from_numpy(found)


class Terms(NamedTuple):
    """The parts of the loss on one minibatch."""

    loss: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    """About the divergence of the old policy from the new: mean of r − 1 − log r."""
    clipped: Tensor
    """The fraction of samples whose probability has moved by more than ε."""


def ppo_terms(logits: Tensor, values: Tensor, batch: Steps, settings: PPO, *, normalise: bool | None = None) -> Terms:
    """The loss on a minibatch. `normalise=False` takes its advantages as they are: then it is a mean of its samples' losses."""
    log = logits.log_softmax(dim=1)
    moved = log.gather(1, batch.actions[:, None]).squeeze(1) - batch.log_probs
    ratio, good = moved.exp(), batch.advantages
    if (settings.normalise_advantages if normalise is None else normalise) and len(good) > 1:
        good = (good - good.mean()) / (good.std() + 1e-8)
    policy = -torch.min(ratio * good, ratio.clamp(1 - settings.clip, 1 + settings.clip) * good).mean()
    error = (values - batch.returns).square()
    if settings.value_clip:
        near = batch.values + (values - batch.values).clamp(-settings.value_clip, settings.value_clip)
        error = torch.max(error, (near - batch.returns).square())
    value, entropy = 0.5 * error.mean(), -(log.exp() * log).sum(dim=1).mean()
    loss = policy + settings.value_weight * value - settings.entropy * entropy
    with torch.no_grad():
        kl, clipped = (ratio - 1 - moved).mean(), ((ratio - 1).abs() > settings.clip).float().mean()
    return Terms(loss, policy, value, entropy, kl, clipped)


def new_adam(net: nn.Module, settings: PPO) -> Adam:
    """The optimiser of a game."""
    return Adam(net.parameters(), settings.lr, eps=settings.adam_eps, fused=True)


def improve(
    net: GameNet,
    game: int,
    optimizer: Optimizer,
    steps: Steps,
    settings: PPO,
    generator: torch.Generator,
    after_step: Callable[[], None] | None = None,
    after_pass: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Some passes over the steps of a rollout; returns the means of the parts of the loss over all minibatches.

    `after_step` and `after_pass` may move the weights.
    """
    device = next(net.parameters()).device
    steps = Steps(*(part.to(device) for part in steps))
    weights, seen = list(net.parameters()), list[Tensor]()
    for pass_over in minibatches(len(steps.actions), settings, generator):
        for rows in pass_over:
            batch = steps.at(rows.to(device))
            terms = ppo_terms(*net.policy(batch.observations, game), batch, settings)
            optimizer.zero_grad()
            terms.loss.backward()  # type: ignore[no-untyped-call]
            if settings.max_grad_norm:
                nn.utils.clip_grad_norm_(weights, settings.max_grad_norm)
            optimizer.step()
            if after_step:
                after_step()
            seen.append(torch.stack([term.detach() for term in terms]))
        if after_pass:
            after_pass()
    found = dict(zip(Terms._fields, torch.stack(seen).mean(dim=0).tolist(), strict=True))
    if not math.isfinite(found["loss"]):
        raise DivergedError(
            f"the loss became {found['loss']} (policy {found['policy']}, value {found['value']}, entropy {found['entropy']}). "
            "Lower training.lr, or a strength: the pull of a very strong one overshoots. The last checkpoint is whole"
        )
    spread = float(steps.returns.var())
    found["explained"] = 1 - float((steps.returns - steps.values).var()) / spread if spread > 0 else 0.0
    return found


def minibatches(size: int, settings: PPO, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
    """Of each pass, the rows of its minibatches."""
    for _ in range(settings.epochs):
        yield torch.randperm(size, generator=generator).tensor_split(min(settings.minibatches, size))
