"""AFEC(start="merged"): where θ starts, by hand, and that it changes the result."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_weight import Line, half_square, point

from afec import AFEC, EWC
from afec.gaussian import Gaussian, merge


def gaussian(mean, precision):
    return Gaussian({"w": torch.tensor(mean)}, {"w": torch.tensor(precision)})


def test_the_mode_by_hand():
    """(2·1·3 + 0.5·4·6) / (2·1 + 0.5·4) = 4.5; where only one of them knows the weight, its mean; where none does, it stays."""
    total = merge(
        [(2.0, gaussian([3.0, 3.0, 3.0, 3.0], [1.0, 0.0, 1.0, 0.0])), (0.5, gaussian([6.0] * 4, [4.0, 4.0, 0.0, 0.0]))]
    )
    assert total.mode({"w": torch.full((4,), 9.0)})["w"].tolist() == [4.5, 6.0, 3.0, 9.0]
    one = merge([(2.0, gaussian([3.0, 3.0], [1.0, 0.0]))])
    assert one.mode({"w": torch.full((2,), 9.0)})["w"].tolist() == [3.0, 9.0]


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(-5, 5), st.floats(0.01, 10)), min_size=1, max_size=3),
)
def test_nothing_pulls_at_the_mode(terms):
    total = merge(
        [
            (weight, Gaussian({"w": torch.tensor([m]).double()}, {"w": torch.tensor([f]).double()}))
            for weight, m, f in terms
        ]
    )
    mode = total.mode({"w": torch.zeros(1).double()})
    assert total.pull(mode)["w"].item() == pytest.approx(0, abs=1e-9)


def second_task(**options):
    """w on entry of the second task's loop: the first one has left it at 1, θ_e goes to the target 3 by itself."""
    model, lr = Line(0.0), 1.0
    guard = EWC(strength=2, fisher="empirical") + AFEC(
        forgetting=0.5, fisher="empirical", expand=lambda: set_to(model, 2.0), **options
    )
    optimizer = torch.optim.SGD(model.parameters(), lr)
    with guard.learning(model, optimizer, point(0.0), half_square) as task:
        set_to(model, 1.0)
        task.accept()
    with guard.learning(model, optimizer, point(3.0), half_square):
        return model.w.item()


def set_to(model, value):
    with torch.no_grad():
        model.w.fill_(value)


def test_theta_starts_between_the_old_and_the_new_by_hand():
    """F at 1 for the target 0 is 1² = 1; F_e at 2 for the target 3 is 1: (2·1·1 + 0.5·1·2) / 2.5 = 1.2."""
    assert second_task() == 1.0
    assert second_task(start="merged") == pytest.approx(1.2, rel=1e-12)


def test_it_changes_the_result_on_digits(digits):
    weights = [digits.run(EWC(10) + AFEC(1, epochs=2, **options)) for options in ({}, {"start": "merged"})]
    assert not torch.equal(*weights)


def test_interleaved_has_no_theta_e_to_start_from():
    with pytest.raises(ValueError, match='start="merged" needs θ_e before θ is trained'):
        AFEC(1, schedule="interleaved", start="merged")
