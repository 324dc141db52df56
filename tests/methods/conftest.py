"""Two tasks of real digits, five classes each, and a small net."""

from __future__ import annotations

import pytest
import torch
from one_weight import Digits
from sklearn.datasets import load_digits
from torch import nn


@pytest.fixture(scope="session")
def digits() -> Digits:
    torch.manual_seed(2)
    x, y = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    tasks = [(inputs[labels // 5 == part][:200], labels[labels // 5 == part][:200]) for part in (0, 1)]
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 10))
    return Digits(model, tasks)
