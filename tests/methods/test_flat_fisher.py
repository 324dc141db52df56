"""AFEC(fisher_form="flat"): all weights are pulled to θ_e alike, by hand, and that it changes the result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from afec import AFEC


class Plane(nn.Module):
    """f(x) = v·x₁ + w·x₂, two weights in two tensors."""

    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return x[:, :1] * self.v + x[:, 1:] * self.w


def half_square(model, batch):
    return 0.5 * (model(batch[0]) - batch[1]).square().mean()


def pulls(**options):
    """What is added to both gradients in the second task, at v = w = 0; θ_e is v = w = 1."""
    model = Plane()
    x, y = torch.tensor([[1.0, 3.0]]).double(), torch.full((1, 1), 5.0).double()

    def to_theta_e():
        with torch.no_grad():
            model.v.fill_(1.0)
            model.w.fill_(1.0)

    guard = AFEC(forgetting=0.5, fisher="empirical", expand=to_theta_e, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with guard.learning(model, optimizer, (x, y), half_square) as task:
        task.accept()
    with guard.learning(model, optimizer, (x, y), half_square):
        optimizer.zero_grad()
        (0 * half_square(model, (x, y))).backward()
        optimizer.step()
        return model.v.grad.item(), model.w.grad.item()


def test_the_pull_of_a_flat_fisher_by_hand():
    """At θ_e the residual is 1 + 3 − 5 = −1, so F_e is (1·1)² = 1 and (1·3)² = 9, and its mean 5; λ_e·F_e·(0 − 1)."""
    assert pulls() == pytest.approx((-0.5, -4.5), rel=1e-12)
    assert pulls(fisher_form="flat") == pytest.approx((-2.5, -2.5), rel=1e-12)


def test_it_changes_the_result_on_digits(digits):
    weights = [digits.run(AFEC(1, epochs=2, **options)) for options in ({}, {"fisher_form": "flat"})]
    assert not torch.equal(*weights)


def test_another_word_is_an_error():
    with pytest.raises(ValueError, match="AFEC: fisher_form must be 'flat'; got 'round'"):
        AFEC(1, epochs=1, fisher_form="round")
