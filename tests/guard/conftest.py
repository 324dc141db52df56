"""A small net, three tasks on the same inputs, and a plain loop."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Data = tuple[Tensor, Tensor]


@dataclass
class Setting:
    model: nn.Module
    optimizer: Optimizer
    tasks: list[Data]
    loss: nn.Module

    def train(self, data: Data, epochs: int = 3) -> None:
        inputs, targets = data
        for _ in range(epochs):
            for rows in torch.arange(len(inputs)).split(16):
                self.optimizer.zero_grad()
                self.loss(self.model(inputs[rows]), targets[rows]).backward()
                self.optimizer.step()


@pytest.fixture
def setting() -> Setting:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    inputs = torch.randn(48, 6)
    tasks = [(inputs, (inputs @ torch.randn(6, 3)).argmax(1)) for _ in range(3)]
    return Setting(model, torch.optim.Adam(model.parameters(), 1e-2), tasks, nn.CrossEntropyLoss())
