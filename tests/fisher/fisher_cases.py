"""The networks that every route is tried on, each with the route that must serve each of its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


class TiedTokens(nn.Module):
    """The same, as a layer of its own that has the embedding's weight."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.table, self.output = nn.Embedding(7, 4, **options), nn.Linear(4, 7)
        self.output.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.tanh(self.table(x)))


class Bigrams(nn.Module):
    """An embedding that is looked up twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x) * torch.sin(self.table(x.roll(1, 1)))


class NormTwice(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.sin(self.norm(x)))


class ConvolutionTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(torch.tanh(self.conv(x)))


class Positions(nn.Module):
    """Tokens and their positions, which are looked up once for all samples, as in GPT-2 and BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(7, 4), nn.Embedding(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x) * torch.sin(self.places(torch.arange(x.shape[1])[None]))


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
        if isinstance(module, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm):
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
    "called-twice": Case(Twice, (4,), 4, {}),
    "called-twice-sequence": Case(Twice, SEQUENCE, 4, {}, channels_at=-1),
    "tied-modules": Case(Tied, (4,), 4, {}),
    "tied-output-layer": Case(TiedTokens, (6,), 7, {}, channels_at=-1, tokens=True),
    "tied-output-layer-padding": Case(lambda: TiedTokens(padding_idx=2), (6,), 7, {}, channels_at=-1, tokens=True),
    "embedding-called-twice": Case(Bigrams, (6,), 4, {}, channels_at=-1, tokens=True),
    "norm-called-twice": Case(lambda: NormTwice(nn.LayerNorm(4)), SEQUENCE, 4, {}, channels_at=-1),
    "convolution-called-twice": Case(ConvolutionTwice, IMAGE, 4, {"body": "func"}),
    "positions-looked-up-once": Case(Positions, (6,), 4, {}, channels_at=-1, tokens=True),
    "rmsnorm": Case(lambda: nn.RMSNorm(4), SEQUENCE, 4, {}, channels_at=-1),
    "rmsnorm-flat": Case(lambda: nn.RMSNorm(4, eps=0.1), (4,), 4, {}),
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
