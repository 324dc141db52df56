"""Random small networks: whatever is drawn, the Fisher is that of one sample at a time."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Problem, estimate

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, database=None)


@st.composite
def convolutions(draw: st.DrawFn, channels: int) -> nn.Module:
    groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    return nn.Conv2d(
        channels,
        groups * draw(st.integers(1, 3)),
        kernel,
        stride=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        padding=draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
        dilation=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "replicate"])),
    )


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Some convolutions, some linear layers, and a batch for them; images are large enough for any of it."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    channels = draw(st.integers(1, 4))
    layers: list[nn.Module] = []
    width = channels
    for _ in range(draw(st.integers(0, 2))):
        layer = draw(convolutions(width))
        layers += [layer, nn.Tanh()]
        width = layer.out_channels
        if draw(st.booleans()):
            layers.append(nn.GroupNorm(1, width))
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, draw(st.integers(1, 5)))]
    for _ in range(draw(st.integers(0, 2))):
        layers += [nn.ReLU(inplace=draw(st.booleans())), nn.Linear(layers[-1].out_features, draw(st.integers(1, 5)))]
    size = (draw(st.integers(1, 7)), channels, draw(st.integers(14, 16)), draw(st.integers(14, 16)))
    x = torch.randn(size, dtype=torch.float64)
    if draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
    return nn.Sequential(*layers).double(), x


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@SETTINGS
@given(drawn=networks(), chunk=st.integers(1, 8), which=st.sampled_from(["empirical", "categorical", "gaussian"]))
def test_random_networks(drawn: tuple[nn.Module, Tensor], chunk: int, which: str, by_hand, assert_close) -> None:
    model, x = drawn
    y = torch.zeros(len(x), dtype=torch.long)
    likelihood = None if which == "empirical" else which
    problem = Problem(model, loss, lambda m, b: m(b[0]), likelihood)
    kind = "empirical" if likelihood is None else "exact"
    result = estimate(problem, dict(model.named_parameters()), [(x, y)], kind=kind, chunk=chunk)

    def scalars(model: nn.Module, batch: tuple[Tensor, Tensor]) -> list[Tensor]:
        if which == "empirical":
            return [loss(model, batch)]
        output = model(batch[0])[0]
        if which == "gaussian":
            return list(output)
        return [p.sqrt() * log_p for p, log_p in zip(output.softmax(0).detach(), output.log_softmax(0), strict=True)]

    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    expected = by_hand(model, singles, scalars)
    # A softmax over one class has gradients that cancel to rounding noise: compare to what there is elsewhere.
    floor = 1e-20 * max(square.max() for square in expected.values()) + 1e-28
    for name, square in expected.items():
        difference = (result.mean()[name] - square).abs().max()
        assert difference <= 1e-9 * square.max() + floor, name
    assert set(result.routes.values()) == {"fast"}


@SETTINGS
@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 7))
def test_batched_counts(samples: int, size: int, batch_size: int) -> None:
    """The formula (B/N) Σ_b g_b², for any N, any B, and batches of any size."""
    torch.manual_seed(samples)
    model = nn.Linear(2, 3).double()
    x, y = torch.randn(samples, 2, dtype=torch.float64), torch.arange(samples) % 3
    batches = list(zip(x.split(size), y.split(size), strict=True))
    result = estimate(Problem(model, loss), {"w": model.weight}, batches, kind="batched", batch_size=batch_size)
    total = sum(torch.autograd.grad(loss(model, batch), model.weight)[0] ** 2 for batch in batches)
    torch.testing.assert_close(result.mean()["w"], total * batch_size / samples)
