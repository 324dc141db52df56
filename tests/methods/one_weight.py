"""One weight whose every step can be worked by hand, and tasks of real digits."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

Data = tuple[Tensor, Tensor]


class Line(nn.Module):
    """f(x) = w·x, one weight."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


def half_square(model: nn.Module, batch: Data) -> Tensor:
    """½·mean((w·x − y)²): at x = 1 the gradient is w − y."""
    return 0.5 * (model(batch[0]) - batch[1]).square().mean()


def point(target: float) -> Data:
    return torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), target, dtype=torch.float64)


def steps(model, optimizer, data, count=1):
    for _ in range(count):
        optimizer.zero_grad()
        half_square(model, data).backward()
        optimizer.step()


@dataclass
class Digits:
    model: nn.Module
    tasks: list[Data]

    def run(self, guard, make=lambda params: torch.optim.Adam(params, 3e-3), epochs=2, batch=50, hook=None):
        """Learn the tasks on a copy of the model; the final weights."""
        model, loss = copy.deepcopy(self.model), nn.CrossEntropyLoss()
        optimizer = make(list(model.parameters()))
        torch.manual_seed(3)  # dropout
        for x, y in self.tasks:
            with guard.learning(model, optimizer, (x, y), loss) as task:
                for epoch in range(epochs):
                    task.epoch()
                    for rows in torch.arange(len(x)).split(batch):
                        optimizer.zero_grad()
                        loss(model(x[rows]), y[rows]).backward()
                        optimizer.step()
                    if hook is not None:
                        hook(task, model, epoch)
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    def check_option(self, make, base, other, **how):
        """The option changes what is learned when the first task comes a third time, and the same options do not."""
        visits = replace(self, tasks=[*self.tasks, self.tasks[0]])
        one, two, again = (visits.run(make(**{**base, **more}), **how) for more in ({}, other, other))
        assert not torch.equal(one, two)
        assert torch.equal(two, again)


def with_penalty(value, model, old, strength):
    """The loss plus λ/2 ΣF(θ−θ*)² of what is known of the earlier tasks."""
    away = ((p - old["mean"][name]) ** 2 * old["precision"][name] for name, p in model.named_parameters())
    return value + strength / 2 * sum(part.sum() for part in away)


def state_of(guard):
    (state,) = guard.state_dict()["states"].values()
    return state
