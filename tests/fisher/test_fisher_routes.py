"""Every layer type, by whichever route, gives what one backward pass per sample gives; and the route is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Problem, estimate

N, K = 5, 3


class Net(nn.Module):
    """`body`, then a mean over all positions of its tanh, then a head."""

    def __init__(self, body: nn.Module, features: int, channels_at: int = 1) -> None:
        super().__init__()
        self.body, self.head, self.channels_at = body, nn.Linear(features, K), channels_at

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        h = h[0] if isinstance(h, tuple) else h
        h = torch.tanh(h)
        return self.head(h.movedim(self.channels_at, 1).flatten(2).mean(2) if h.dim() > 2 else h)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Tied(nn.Module):
    """Two layers that own one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


class Reused(nn.Module):
    """A layer that is called, and whose weight is read once more behind its back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.layer(x)), self.layer.weight)


class Tokens(nn.Module):
    """An embedding that is its own output layer, as in many language models."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x) @ self.table.weight.T


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x, need_weights=False)[0]


class TimeMajor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


class Shadow(nn.Module):
    """A layer whose one call leaves no gradient, while its weight is read elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.layer(x)
        return F.linear(x, self.layer.weight, self.layer.bias) - 0.1 * target


class Gate(nn.Module):
    """A bare parameter, and a call by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.randn(4)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(input=x)


class Branch(nn.Module):
    """vmap cannot follow a branch on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x if x.sum().item() < 1e9 else x


def hooked(body: nn.Module) -> nn.Module:
    """A layer whose output a user's hook changes."""
    body.register_forward_hook(lambda module, args, output: 2 * output.sin())
    return body


def scaled_gradient() -> nn.Module:
    """A user's hook on the weight itself, as is done to freeze some rows: no graph shows it."""
    body = nn.Linear(4, 6)
    body.weight.register_hook(lambda grad: grad * torch.arange(6.0, dtype=grad.dtype)[:, None])
    return body


def dirty_statistics(body: nn.Module) -> nn.Module:
    for module in body.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.weight)
            if module.running_mean is not None:
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
        if isinstance(module, nn.GroupNorm | nn.LayerNorm):
            nn.init.normal_(module.weight)
    return body


@dataclass
class Case:
    """A body, what goes into it, and the weights (by part of their name) that are not served fast."""

    body: Callable[[], nn.Module]
    shape: tuple[int, ...]
    features: int
    slow: dict[str, str]
    channels_at: int = 1
    tokens: bool = False

    def net(self) -> Net:
        torch.manual_seed(1)
        return Net(self.body(), self.features, self.channels_at).double()

    def inputs(self) -> Tensor:
        torch.manual_seed(2)
        if self.tokens:
            return torch.randint(0, 7, (N, *self.shape))
        return torch.randn(N, *self.shape, dtype=torch.float64)


def conv(*args: object, **options: object) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(*args, **options)


IMAGE, SIGNAL, SEQUENCE = (4, 7, 6), (4, 9), (6, 4)
CASES = {
    "conv2d": Case(conv(4, 6, 3), IMAGE, 6, {}),
    "conv2d-1x1": Case(conv(4, 6, 1), IMAGE, 6, {}),
    "conv2d-stride-padding": Case(conv(4, 6, (3, 2), stride=(2, 1), padding=(1, 2)), IMAGE, 6, {}),
    "conv2d-groups": Case(conv(4, 6, 3, groups=2, padding=1), IMAGE, 6, {}),
    "conv2d-depthwise": Case(conv(4, 8, 3, groups=4, bias=False), IMAGE, 8, {}),
    "conv2d-dilation": Case(conv(4, 6, 3, dilation=2, padding=2, stride=2), IMAGE, 6, {}),
    "conv2d-same": Case(conv(4, 6, (3, 5), padding="same", dilation=(1, 2)), IMAGE, 6, {}),
    "conv2d-same-even": Case(conv(4, 6, 2, padding="same"), IMAGE, 6, {}),
    "conv2d-valid": Case(conv(4, 6, 3, padding="valid"), IMAGE, 6, {}),
    "conv2d-circular": Case(conv(4, 6, 3, padding=(1, 2), padding_mode="circular"), IMAGE, 6, {}),
    "conv2d-reflect": Case(conv(4, 6, 3, padding=1, padding_mode="reflect"), IMAGE, 6, {}),
    "conv1d": Case(lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), SIGNAL, 6, {}),
    "conv3d": Case(lambda: nn.Conv3d(2, 6, 2, padding=1), (2, 3, 4, 5), 6, {}),
    "conv2d-transposed": Case(lambda: nn.ConvTranspose2d(4, 6, 3), IMAGE, 6, {"body": "func"}),
    "linear": Case(lambda: nn.Linear(4, 6), (4,), 6, {}),
    "linear-sequence": Case(lambda: nn.Linear(4, 6), SEQUENCE, 6, {}, channels_at=-1),
    "linear-grid": Case(lambda: nn.Linear(4, 6), (2, 3, 4), 6, {}, channels_at=-1),
    "linear-time-major": Case(TimeMajor, SEQUENCE, 4, {"body": "func"}, channels_at=-1),
    "linear-inplace-relu": Case(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 6)), (4,), 6, {}
    ),
    "linear-hooked": Case(lambda: hooked(nn.Linear(4, 6)), (4,), 6, {}),
    "batchnorm1d": Case(lambda: nn.BatchNorm1d(4), (4,), 4, {}),
    "batchnorm1d-signal": Case(lambda: nn.BatchNorm1d(4), SIGNAL, 4, {}),
    "batchnorm2d": Case(lambda: nn.BatchNorm2d(4), IMAGE, 4, {}),
    "batchnorm3d": Case(lambda: nn.BatchNorm3d(2), (2, 3, 4, 5), 2, {}),
    "batchnorm2d-no-statistics": Case(lambda: nn.BatchNorm2d(4, track_running_stats=False), IMAGE, 4, {"": "func"}),
    "groupnorm": Case(lambda: nn.GroupNorm(2, 4), IMAGE, 4, {}),
    "groupnorm-flat": Case(lambda: nn.GroupNorm(2, 4), (4,), 4, {}),
    "layernorm": Case(lambda: nn.LayerNorm(4), SEQUENCE, 4, {}, channels_at=-1),
    "layernorm-flat": Case(lambda: nn.LayerNorm(4), (4,), 4, {}),
    "layernorm-two-dims": Case(lambda: nn.LayerNorm((6, 4)), (3, 6, 4), 4, {}, channels_at=-1),
    "embedding": Case(lambda: nn.Embedding(7, 4), (6,), 4, {}, channels_at=-1, tokens=True),
    "embedding-padding": Case(lambda: nn.Embedding(7, 4, padding_idx=2), (6,), 4, {}, -1, tokens=True),
    "embedding-sparse": Case(lambda: nn.Embedding(7, 4, sparse=True), (6,), 4, {}, -1, tokens=True),
    "embedding-by-frequency": Case(
        lambda: nn.Embedding(7, 4, scale_grad_by_freq=True), (6,), 4, {"body": "func"}, -1, tokens=True
    ),
    "embedding-tied": Case(Tokens, (6,), 7, {"body": "func"}, channels_at=-1, tokens=True),
    # As many steps as the two samples that are tried: the shapes do not tell, the numbers do.
    "linear-time-major-two-steps": Case(TimeMajor, (2, 4), 4, {"body": "func"}, channels_at=-1),
    "called-for-nothing": Case(Shadow, (4,), 4, {"body": "func"}),
    "gradient-hook": Case(scaled_gradient, (4,), 6, {"body.weight": "loop"}),
    "called-twice": Case(Twice, (4,), 4, {"body": "func"}),
    "tied-modules": Case(Tied, (4,), 4, {"body.one.weight": "func"}),
    "reused-weight": Case(Reused, (4,), 4, {"body.layer.weight": "func"}),
    "bare-parameter": Case(Gate, (4,), 4, {"body.scale": "func"}),
    "value-branch": Case(Branch, (4,), 4, {"body.scale": "loop"}),
    "weight-norm": Case(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), (4,), 6, {"body": "func"}),
    "lstm": Case(lambda: nn.LSTM(4, 6, batch_first=True), SEQUENCE, 6, {"body": "loop"}, channels_at=-1),
    "gru": Case(lambda: nn.GRU(4, 6, batch_first=True), SEQUENCE, 6, {"body": "loop"}, channels_at=-1),
    "attention": Case(Attention, SEQUENCE, 4, {"body": "func"}, channels_at=-1),
    "transformer": Case(
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), SEQUENCE, 4, {"self_attn": "func"}, -1
    ),
}


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def predict(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0])


def surprises(model: nn.Module, batch: tuple[Tensor, Tensor]) -> list[Tensor]:
    """√p(c|x) log p(c|x) for every class c, √p held fixed: the definition of the exact Fisher."""
    logits = model(batch[0])[0]
    return [p.sqrt() * log_p for p, log_p in zip(logits.softmax(0).detach(), logits.log_softmax(0), strict=True)]


def route_of(name: str, slow: dict[str, str]) -> str:
    return next((route for part, route in slow.items() if part in name), "fast")


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("kind", ["empirical", "exact"])
@pytest.mark.parametrize("name", CASES)
def test_equals_one_sample_at_a_time(name: str, kind: str, by_hand, assert_close) -> None:
    case = CASES[name]
    net = dirty_statistics(case.net())
    x, y = case.inputs(), torch.arange(N) % K
    if name == "batchnorm2d-no-statistics" and kind == "empirical":
        pytest.skip("samples that mix have no losses of their own: see test_fisher_errors")
    problem = Problem(net, loss, predict, "categorical")
    result = estimate(problem, dict(net.named_parameters()), [(x[:3], y[:3]), (x[3:], y[3:])], kind=kind, chunk=2)

    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    scalars = surprises if kind == "exact" else lambda model, batch: [loss(model, batch)]
    assert result.count == N
    assert_close(result.mean(), by_hand(net, singles, scalars))
    assert result.routes == {weight: route_of(weight, case.slow) for weight, _ in net.named_parameters()}


@pytest.mark.parametrize("name", ["conv2d-stride-padding", "conv2d-groups", "conv2d-1x1", "batchnorm2d"])
@pytest.mark.parametrize("kind", ["empirical", "exact"])
def test_channels_last(name: str, kind: str, by_hand, assert_close) -> None:
    net = CASES[name].net().to(memory_format=torch.channels_last)
    x, y = CASES[name].inputs().contiguous(memory_format=torch.channels_last), torch.arange(N) % K
    problem = Problem(net, loss, predict, "categorical")
    result = estimate(problem, dict(net.named_parameters()), [(x, y)], kind=kind)
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    scalars = surprises if kind == "exact" else lambda model, batch: [loss(model, batch)]
    assert_close(result.mean(), by_hand(net, singles, scalars))
    assert set(result.routes.values()) == {"fast"}


@pytest.mark.parametrize("name", ["conv2d-stride-padding", "linear-sequence", "transformer", "lstm", "embedding"])
def test_float32(name: str, by_hand, assert_close) -> None:
    """Rounding must not send a weight to a slower route. (vmap follows an LSTM of float32, not of float64.)"""
    case = CASES[name]
    net = case.net().float()
    x, y = case.inputs(), torch.arange(N) % K
    x = x if case.tokens else x.float()
    result = estimate(Problem(net, loss), dict(net.named_parameters()), [(x, y)], kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [loss(model, batch)]), 1e-5)
    if name != "lstm":
        assert result.routes == {weight: route_of(weight, case.slow) for weight, _ in net.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_in_float32(dtype: torch.dtype, by_hand, assert_close) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, K)).to(dtype)
    x, y = torch.randn(N, 4, dtype=dtype), torch.arange(N) % K
    result = estimate(Problem(net, loss), dict(net.named_parameters()), [(x, y)], kind="empirical")
    assert {square.dtype for square in result.squares.values()} == {torch.float32}
    assert set(result.routes.values()) == {"fast"}
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    # A half rounds a gradient by its epsilon, and the square by twice that.
    tolerance = 8 * torch.finfo(dtype).eps
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [loss(model, batch)]), tolerance)


def test_a_penalty_in_the_loss_counts(by_hand, assert_close) -> None:
    """The layer is called once, and the loss reads its weight once more."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, K)).double()
    x, y = torch.randn(N, 4, dtype=torch.float64), torch.arange(N) % K

    def decayed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return loss(model, batch) + 0.5 * net[0].weight.square().sum()

    result = estimate(Problem(net, decayed), dict(net.named_parameters()), [(x, y)], kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [decayed(model, batch)]))
    assert result.routes == {"0.weight": "func", "0.bias": "fast", "2.weight": "fast", "2.bias": "fast"}


def test_closures_over_the_model_see_swapped_weights(by_hand, assert_close) -> None:
    net = CASES["bare-parameter"].net()
    x, y = CASES["bare-parameter"].inputs(), torch.arange(N) % K
    closed = Problem(net, lambda _, batch: F.cross_entropy(net(batch[0]), batch[1]))
    result = estimate(closed, dict(net.named_parameters()), [(x, y)], kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [loss(model, batch)]))
    assert result.routes["body.scale"] == "func"


def test_a_weight_first_used_later(by_hand, assert_close) -> None:
    """On the first samples one head is idle; later it is called twice, which only the loop can serve."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, K), nn.Linear(4, K)

        def forward(self, x: Tensor, task: int) -> Tensor:
            return self.first(x) if task == 0 else self.second(x.sin()) + self.second(x)

    torch.manual_seed(0)
    net = Heads().double()
    x, y = torch.randn(4, 4, dtype=torch.float64), torch.arange(4) % K

    def task_loss(model: nn.Module, batch: tuple[Tensor, Tensor, int]) -> Tensor:
        return F.cross_entropy(model(batch[0], batch[2]), batch[1])

    batches = [(x[:2], y[:2], 0), (x[2:], y[2:], 1)]
    result = estimate(Problem(net, task_loss), dict(net.named_parameters()), batches, kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1], i // 2) for i in range(4)]
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [task_loss(model, batch)]))
    routes = {"first.weight": "fast", "first.bias": "fast", "second.weight": "loop", "second.bias": "loop"}
    assert result.routes == routes


@pytest.mark.parametrize("name", ["attention", "reused-weight", "called-twice", "called-for-nothing", "tied-modules"])
def test_zero_gradients_prove_nothing(name: str, by_hand, assert_close) -> None:
    """A hinge is flat on the first samples: zero equals zero there, and a lying route must still be found out."""
    net, x = CASES[name].net(), CASES[name].inputs()
    y = torch.full((N,), 1e3, dtype=torch.float64)
    y[:2] = -1e3

    def hinge(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0])[:, 0] + batch[1]).clamp_min(0).mean()

    batches = [(x[:2], y[:2]), (x[2:], y[2:])]
    result = estimate(Problem(net, hinge), dict(net.named_parameters()), batches, kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    expected = by_hand(net, singles, lambda model, batch: [hinge(model, batch)])
    assert all(
        square.max() > 0
        for weight, square in expected.items()
        if weight.startswith("body") and "in_proj_bias" not in weight
    )
    assert_close(result.mean(), expected)


@pytest.mark.parametrize("kind", ["exact", "sample"])
def test_a_saturated_net_stays_on_the_fast_route(kind: str) -> None:
    """Its likelihood's gradients are zero or rounding noise, which must not decide about routes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, K))
    with torch.no_grad():
        net[2].weight.mul_(60)
    x = torch.randn(32, 4)
    p = net(x).softmax(1).max(1).values.detach()
    x = x[p.argsort(descending=True)]
    assert p.topk(2).values.min() > 1 - 1e-6, "the first two samples are meant to be saturated"
    problem = Problem(net, loss, predict, "categorical")
    result = estimate(problem, dict(net.named_parameters()), [(x, torch.zeros(32).long())], kind=kind)
    assert set(result.routes.values()) == {"fast"}


def test_the_worst_fitted_samples_are_tried(by_hand, assert_close) -> None:
    """The first two samples of the batch have no gradient, and only the numbers can tell that a route is wrong."""
    net, x = CASES["gradient-hook"].net(), CASES["gradient-hook"].inputs()
    y = torch.tensor([-1e3, -1e3, 1e3, 1e3, 1e3], dtype=torch.float64)

    def hinge(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0])[:, 0] + batch[1]).clamp_min(0).mean()

    result = estimate(Problem(net, hinge), dict(net.named_parameters()), [(x, y)], kind="empirical")
    singles = [(x[i : i + 1], y[i : i + 1]) for i in range(N)]
    assert_close(result.mean(), by_hand(net, singles, lambda model, batch: [hinge(model, batch)]))
    assert result.routes["body.weight"] == "loop"


@pytest.mark.parametrize("kind", ["exact", "sample"])
def test_certain_samples_prove_nothing_either(kind: str, assert_close) -> None:
    """Where the model is certain its own labels have no gradient: a random projection of the output has one."""
    net, x = CASES["gradient-hook"].net(), CASES["gradient-hook"].inputs()
    certainty = torch.tensor([1e5, 1e5, 0, 0, 0], dtype=torch.float64)

    def shifted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0]) + batch[1][:, None] * torch.tensor([1.0, 0, 0], dtype=torch.float64)

    def split(batch: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(batch[0].split(1), batch[1].split(1), strict=True))

    weights, data = dict(net.named_parameters()), [(x, certainty)]
    result = estimate(Problem(net, loss, shifted, "categorical"), weights, data, kind=kind)
    alone = estimate(Problem(net, loss, shifted, "categorical", split), weights, data, kind=kind)
    assert_close(result.mean(), alone.mean())
    assert result.routes["body.weight"] == "loop"


@pytest.mark.parametrize("kind", ["empirical", "batched"])
def test_small_gradients_of_halves_do_not_underflow(kind: str) -> None:
    """10⁻⁴ is a float16, its square is not."""
    net = nn.Bilinear(1, 1, 1, bias=False).half()  # no rule: goes sample by sample, or by torch.func
    x = torch.ones(2, 1, dtype=torch.float16)
    result = estimate(
        Problem(net, lambda m, b: (1e-4 * m(b, b)).mean()), {"w": net.weight}, [x], kind=kind, batch_size=2
    )
    assert result.mean()["w"].item() == pytest.approx(1e-8, rel=1e-2)
    alone = Problem(net, lambda m, b: (1e-4 * m(b, b)).mean(), split=lambda b: b.split(1))
    assert estimate(alone, {"w": net.weight}, [x], kind="empirical").mean()["w"].item() == pytest.approx(1e-8, rel=1e-2)


def test_unused_and_partial_weights() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({"used": nn.Linear(4, K), "idle": nn.Linear(4, K)})
    x, y = torch.randn(N, 4), torch.arange(N) % K
    problem = Problem(net, lambda model, batch: F.cross_entropy(model["used"](batch[0]), batch[1]))
    everything = estimate(problem, dict(net.named_parameters()), [(x, y)], kind="empirical")
    assert everything.squares["idle.weight"].count_nonzero() == 0
    assert set(everything.routes.values()) == {"fast"}
    part = estimate(problem, {"mine": net["used"].weight}, [(x, y)], kind="empirical")
    assert list(part.squares) == ["mine"]
    assert torch.equal(part.squares["mine"], everything.squares["used.weight"])


def test_frozen_weights_are_computed_and_stay_frozen() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, K)
    x, y = torch.randn(N, 4), torch.arange(N) % K
    free = estimate(Problem(net, loss), dict(net.named_parameters()), [(x, y)], kind="empirical")
    net.requires_grad_(False)
    frozen = estimate(Problem(net, loss), dict(net.named_parameters()), [(x, y)], kind="empirical")
    assert torch.equal(frozen.squares["weight"], free.squares["weight"])
    assert not net.weight.requires_grad
