"""The mathematics of App. B on numbers worked by hand, by integration and by autograd."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from afec.gaussian import (
    Gaussian,
    beta_from_forgetting,
    forgetting_from_beta,
    log_evidence,
    merge,
    running_average,
    weighted_product,
)

numbers = st.floats(-3, 3)
precisions = st.floats(0.05, 20)
betas = st.floats(0, 1)


def of(mean: list[float] | float, precision: list[float] | float) -> Gaussian:
    means, precisions = (torch.tensor(value, dtype=torch.float64).reshape(-1) for value in (mean, precision))
    return Gaussian({"w": means}, {"w": precisions})


def density(gaussian: Gaussian, x: Tensor) -> Tensor:
    mean, precision = gaussian.mean["w"], gaussian.precision["w"]
    return (precision / (2 * math.pi)).sqrt() * torch.exp(-0.5 * precision * (x - mean) ** 2)


GRID = torch.linspace(-40, 40, 16_001, dtype=torch.float64)


def integral(values: Tensor) -> float:
    return float(torch.trapezoid(values, GRID))


def test_penalty_and_pull_by_hand() -> None:
    # F = (2, 0, 3), θ−θ* = (1, 5, −2): ½·(2·1 + 0·25 + 3·4) = 7, pull (2, 0, −6).
    gaussian = of([1.0, 2.0, 3.0], [2.0, 0.0, 3.0])
    theta = {"w": torch.tensor([2.0, 7.0, 1.0], dtype=torch.float64)}
    assert float(gaussian.penalty(theta)) == 7.0
    assert gaussian.pull(theta)["w"].tolist() == [2.0, 0.0, -6.0]


@given(st.lists(st.tuples(st.floats(0, 5), numbers, st.floats(0, 20)), min_size=1, max_size=5), numbers)
def test_merged_pull_and_penalty_equal_autograd_on_the_sum(terms: list[tuple[float, float, float]], at: float) -> None:
    theta = torch.tensor([at], dtype=torch.float64, requires_grad=True)
    gaussians = [(weight, of(mean, precision)) for weight, mean, precision in terms]
    total = sum((weight * g.penalty({"w": theta}) for weight, g in gaussians), torch.zeros((), dtype=torch.float64))
    (expected,) = torch.autograd.grad(total, theta)
    quadratic = merge(gaussians)
    if any(weight for weight, _ in gaussians):
        assert torch.allclose(quadratic.pull({"w": theta})["w"], expected, atol=1e-9)
    assert float(quadratic.penalty({"w": theta.detach()})) == pytest.approx(float(total.detach()), abs=1e-9)


def test_merge_by_hand() -> None:
    # λ=2, F=3, θ*=1 and λ_e=½, F_e=4, θ_e=3: D = 6+2 = 8, c = 2·(1−3) = −4, at θ=2: 8·1−4 = 4 = 6·1 + 2·(−1).
    quadratic = merge([(2.0, of(1.0, 3.0)), (0.5, of(3.0, 4.0))])
    assert quadratic.curvature["w"].tolist() == [8.0]
    assert quadratic.slope["w"].tolist() == [-4.0]
    assert quadratic.pull({"w": torch.tensor([2.0]).double()})["w"].tolist() == [4.0]
    # ½·2·3·1 + ½·½·4·1 = 4.
    assert float(quadratic.penalty({"w": torch.tensor([2.0]).double()})) == 4.0


def test_one_term_is_exactly_zero_at_its_mean_and_zero_weights_are_dropped() -> None:
    torch.manual_seed(0)
    mean, precision = torch.randn(100), torch.rand(100) * 1e4
    one = Gaussian({"w": mean}, {"w": precision})
    quadratic = merge([(37.0, one), (0.0, Gaussian({"w": mean + 1}, {"w": precision}))])
    assert not quadratic.slope
    assert quadratic.pull({"w": mean})["w"].abs().max() == 0


def test_weights_that_only_one_term_knows_are_merged_around_their_own_mean() -> None:
    other = Gaussian({"v": torch.tensor([5.0])}, {"v": torch.tensor([2.0])})
    quadratic = merge([(1.0, of(1.0, 3.0)), (10.0, other)])
    theta = {"w": torch.tensor([1.0]).double(), "v": torch.tensor([6.0])}
    assert quadratic.pull(theta)["v"].tolist() == [20.0]
    assert float(quadratic.penalty(theta)) == 10.0


def test_running_average_is_the_mean_of_all_fishers_around_the_latest_weights() -> None:
    fishers = [[1.0, 4.0], [2.0, 0.0], [6.0, 2.0]]
    posterior = None
    for task, fisher in enumerate(fishers, start=1):
        posterior = running_average(posterior, of([float(task)] * 2, fisher), task)
    assert posterior is not None
    assert posterior.precision["w"].tolist() == pytest.approx([3.0, 2.0])
    assert posterior.mean["w"].tolist() == [3.0, 3.0]


def test_a_weight_unknown_to_one_side_counts_as_precision_zero() -> None:
    old, new = of(1.0, 6.0), Gaussian({"v": torch.tensor([2.0])}, {"v": torch.tensor([6.0])})
    both = running_average(old, new, 3)
    assert both.precision["v"].tolist() == [2.0]  # (2·0 + 6)/3
    assert both.precision["w"].tolist() == [4.0]  # (2·6 + 0)/3


# -- App. B.2: the weighted product -----------------------------------------------------------------------------------


@given(numbers, precisions, numbers, precisions, betas)
def test_weighted_product_against_numerical_integration(
    m1: float, p1: float, m2: float, p2: float, beta: float
) -> None:
    first, second = of(m1, p1), of(m2, p2)
    product, log_z = weighted_product(first, second, beta)
    unnormalised = density(first, GRID) ** (1 - beta) * density(second, GRID) ** beta
    z = integral(unnormalised)
    mean = integral(GRID * unnormalised) / z
    variance = integral((GRID - mean) ** 2 * unnormalised) / z
    assert log_z == pytest.approx(math.log(z), abs=1e-6)
    assert float(product.mean["w"]) == pytest.approx(mean, abs=1e-6)
    assert 1 / float(product.precision["w"]) == pytest.approx(variance, rel=1e-5)


@given(numbers, precisions, numbers, precisions, st.floats(0.01, 0.99))
def test_weighted_product_is_the_papers_formula(m1: float, p1: float, m2: float, p2: float, beta: float) -> None:
    s1, s2 = 1 / p1, 1 / p2
    v2 = s1 * s2 / (beta * s1 + (1 - beta) * s2)
    m = ((1 - beta) * s2 * m1 + beta * s1 * m2) / (beta * s1 + (1 - beta) * s2)
    k = ((1 - beta) * s2 * m1**2 + beta * s1 * m2**2) / (beta * s1 + (1 - beta) * s2)
    z = math.sqrt(v2 / (s1 ** (1 - beta) * s2**beta)) * math.exp(-(k - m**2) / (2 * v2))
    product, log_z = weighted_product(of(m1, p1), of(m2, p2), beta)
    assert float(product.mean["w"]) == pytest.approx(m, abs=1e-9)
    assert float(product.precision["w"]) == pytest.approx(1 / v2)
    assert log_z == pytest.approx(math.log(z), abs=1e-9)


def test_beta_zero_and_one_give_either_side() -> None:
    first, second = of([1.0, 2.0], [3.0, 4.0]), of([5.0, 6.0], [7.0, 8.0])
    for beta, expected in ((0.0, first), (1.0, second)):
        product, log_z = weighted_product(first, second, beta)
        assert torch.allclose(product.mean["w"], expected.mean["w"])
        assert torch.allclose(product.precision["w"], expected.precision["w"])
        assert log_z == pytest.approx(0, abs=1e-12)


@given(numbers, precisions, numbers, precisions, numbers, precisions, betas)
def test_evidence_against_numerical_integration(
    m1: float, p1: float, m2: float, p2: float, m3: float, h: float, beta: float
) -> None:
    old, prior, likelihood = of(m1, p1), of(m2, p2), of(m3, h)
    mixed, _ = weighted_product(old, prior, beta)
    integrand = torch.exp(-0.5 * h * (GRID - m3) ** 2) * density(mixed, GRID)
    assert log_evidence(old, prior, likelihood, beta) == pytest.approx(math.log(integral(integrand)), abs=1e-5)


def test_evidence_picks_forgetting_where_the_tasks_conflict_and_memory_where_they_agree() -> None:
    prior, grid = Gaussian.isotropic({"w": torch.zeros(1).double()}, 0.1), [i / 20 for i in range(21)]
    old = of(3.0, 50.0)
    agreeing, conflicting = of(3.1, 20.0), of(-3.0, 20.0)
    best = {
        name: max(grid, key=lambda beta, new=new: log_evidence(old, prior, new, beta))
        for name, new in (("agreeing", agreeing), ("conflicting", conflicting))
    }
    assert best["agreeing"] == 0.0
    assert best["conflicting"] > 0.9


# -- App. B.3 and B.4 -------------------------------------------------------------------------------------------------


@given(numbers, precisions, numbers, precisions, st.floats(0, 0.95))
def test_b3_the_optimum_of_l_afec_is_the_mean_of_the_weighted_product(
    old_mean: float, old_precision: float, new_mean: float, new_precision: float, beta: float
) -> None:
    # Quadratic losses: L_B = ½·h·(θ−θ_e)², F_e = h; p(θ|A,B) ∝ p(D_B|θ)·p(θ|D_A) and p(θ|B) ∝ p(D_B|θ) (flat prior).
    old, new = of(old_mean, old_precision), of(new_mean, new_precision)
    loss = merge([(1.0, new), (1.0, old), (forgetting_from_beta(beta), new)])  # L_B + EWC + AFEC, λ = 1
    both = merge([(1.0, old), (1.0, new)])
    joint_mean = both.center["w"] - both.slope["w"] / both.curvature["w"]
    joint = Gaussian({"w": joint_mean}, {"w": both.curvature["w"]})
    expected, _ = weighted_product(joint, new, beta)
    optimum = loss.center["w"] - loss.slope["w"] / loss.curvature["w"]
    assert torch.allclose(optimum, expected.mean["w"], atol=1e-9)
    assert torch.allclose(loss.pull({"w": expected.mean["w"]})["w"], torch.zeros(1).double(), atol=1e-7)


def test_b4_three_tasks_with_a_beta_each() -> None:
    # A, B, C with modes 0, 4, −2 and precisions 2, 1, 3. Exact posteriors by hand, L_AFEC by its minimum.
    a, b, c = of(0.0, 2.0), of(4.0, 1.0), of(-2.0, 3.0)
    beta_b, beta_c = 0.5, 0.25
    # Task B: p(θ|A,B) = N(4/3, 1/3); with β_B = ½: P = ½·3 + ½·1 = 2, mean (½·3·4/3 + ½·1·4)/2 = 2.
    after_b, _ = weighted_product(of(4 / 3, 3.0), b, beta_b)
    assert float(after_b.mean["w"]) == pytest.approx(2.0)
    assert float(after_b.precision["w"]) == pytest.approx(2.0)
    # Task C: p(θ|A,B,C) = N((2·2 − 3·2)/5, 1/5) = N(−0.4, 1/5); β_C = ¼: P = ¾·5 + ¼·3 = 4.5, mean (¾·5·−0.4 + ¼·3·−2)/4.5.
    after_c, _ = weighted_product(of(-0.4, 5.0), c, beta_c)
    assert float(after_c.mean["w"]) == pytest.approx(-3.0 / 4.5)
    for old, new, beta, expected in ((a, b, beta_b, after_b), (after_b, c, beta_c, after_c)):
        loss = merge([(1.0, new), (1.0, old), (forgetting_from_beta(beta), new)])
        optimum = loss.center["w"] - loss.slope["w"] / loss.curvature["w"]
        assert float(optimum) == pytest.approx(float(expected.mean["w"]))


@given(st.floats(0, 0.999))
def test_beta_and_forgetting_are_inverse(beta: float) -> None:
    assert beta_from_forgetting(forgetting_from_beta(beta)) == pytest.approx(beta, abs=1e-12)


def test_beta_by_hand() -> None:
    assert forgetting_from_beta(0.0) == 0.0
    assert forgetting_from_beta(0.5) == 1.0
    assert forgetting_from_beta(0.75) == 3.0


# -- growth -----------------------------------------------------------------------------------------------------------


def test_growth_along_the_first_dimension_gets_precision_zero() -> None:
    grown = Gaussian({"w": torch.ones(2, 3)}, {"w": torch.full((2, 3), 5.0)}).grown_to({"w": torch.full((4, 3), 7.0)})
    assert grown.precision["w"][2:].eq(0).all()
    assert grown.precision["w"][:2].eq(5).all()
    assert grown.mean["w"][:2].eq(1).all()
    assert grown.mean["w"][2:].eq(7).all()


@pytest.mark.parametrize("shape", [(1, 3), (2, 4), (2, 3, 1), (6,), ()])
def test_any_other_change_of_shape_raises(shape: tuple[int, ...]) -> None:
    gaussian = Gaussian({"w": torch.ones(2, 3)}, {"w": torch.ones(2, 3)})
    with pytest.raises(ValueError, match=r"'w' changed its shape from \(2, 3\).*only growth along the first dimension"):
        gaussian.grown_to({"w": torch.ones(shape)})


def test_a_weight_that_is_gone_raises() -> None:
    with pytest.raises(ValueError, match="'w' was guarded in an earlier task and is no longer in the model"):
        of(1.0, 1.0).grown_to({"v": torch.ones(1)})


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [-0.1, 1.1, float("nan")])
def test_beta_outside_its_range(beta: float) -> None:
    with pytest.raises(ValueError, match=r"β must be in \[0, 1\]"):
        weighted_product(of(0.0, 1.0), of(0.0, 1.0), beta)


def test_beta_one_has_no_forgetting_weight() -> None:
    with pytest.raises(ValueError, match=r"β must be in \[0, 1\); got 1.0"):
        forgetting_from_beta(1.0)


def test_an_improper_gaussian_has_no_log_z() -> None:
    with pytest.raises(ValueError, match=r"p1 has no proper density.*add the precision of a prior"):
        weighted_product(of([0.0, 0.0], [1.0, 0.0]), of([0.0, 0.0], [1.0, 1.0]), 0.5)


def test_mismatches() -> None:
    with pytest.raises(ValueError, match="different weights"):
        weighted_product(of(0.0, 1.0), Gaussian({"v": torch.ones(1)}, {"v": torch.ones(1)}), 0.5)
    with pytest.raises(ValueError, match="only one is given for"):
        Gaussian({"w": torch.ones(1)}, {})
    with pytest.raises(ValueError, match="they must be the same"):
        Gaussian({"w": torch.ones(1)}, {"w": torch.ones(2)})
    with pytest.raises(ValueError, match="tasks are counted from 1"):
        running_average(None, of(0.0, 1.0), 0)
    with pytest.raises(ValueError, match="forgetting"):
        beta_from_forgetting(-1.0)
