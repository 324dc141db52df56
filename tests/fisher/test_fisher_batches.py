"""Batches of any make, and what is a row of a sample in them."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Problem, estimate
from afec.fisher.batches import Samples, map_tensors, size_of

Pair = namedtuple("Pair", ["x", "y"])
N, K = 6, 3


class Encoding(UserDict):
    """Like Hugging Face's BatchEncoding: a UserDict with attributes, and with more than its data."""

    def __init__(self, data: dict[str, Any], note: str) -> None:
        super().__init__(data)
        self.note = note

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(name) from None


class MultiHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, K) for _ in range(2))

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[task](x)


@pytest.fixture
def data() -> tuple[MultiHead, Tensor, Tensor]:
    torch.manual_seed(0)
    return MultiHead().double(), torch.randn(N, 4, dtype=torch.float64), torch.arange(N) % K


def expected(model: MultiHead, x: Tensor, y: Tensor) -> Tensor:
    """Head 1's weight, sample by sample."""
    total = torch.zeros_like(model.heads[1].weight)
    for i in range(N):
        single = F.cross_entropy(model(x[i : i + 1], 1), y[i : i + 1])
        total += torch.autograd.grad(single, model.heads[1].weight)[0] ** 2
    return total / N


MAKES = {
    "list with a task id": (lambda x, y: [x, y, 1], lambda m, b: F.cross_entropy(m(b[0], b[2]), b[1])),
    "named tuple": (Pair, lambda m, b: F.cross_entropy(m(b.x, 1), b.y)),
    "dict": (
        lambda x, y: {"task": torch.tensor(1), "x": x, "y": y, "name": "b"},
        lambda m, b: F.cross_entropy(m(b["x"], int(b["task"])), b["y"]),
    ),
    "ordered dict in a tuple": (
        lambda x, y: (OrderedDict(x=x), {"more": [y, None]}),
        lambda m, b: F.cross_entropy(m(b[0]["x"], 1), b[1]["more"][0]),
    ),
    "mapping proxy": (
        lambda x, y: MappingProxyType({"x": x, "y": y}),
        lambda m, b: F.cross_entropy(m(b["x"], 1), b["y"]),
    ),
    "BatchEncoding": (
        lambda x, y: Encoding({"x": x, "y": y}, note="kept"),
        lambda m, b: F.cross_entropy(m(b.x, len(b.note) - 3), b.y),
    ),
}


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("parametrised", [False, True], ids=["fast", "func"])
def test_makes(make: str, parametrised: bool, data) -> None:
    model, x, y = data
    truth = expected(model, x, y)
    build, loss = MAKES[make]
    weights = {"w": model.heads[1].weight}
    if parametrised:  # leaves no rule for the layer
        nn.utils.parametrize.register_parametrization(model.heads[1], "weight", nn.Identity())
        weights = {"w": model.heads[1].parametrizations.weight.original}
    result = estimate(Problem(model, loss), weights, [build(x, y)], kind="empirical", chunk=4)
    torch.testing.assert_close(result.mean()["w"], truth, rtol=1e-9, atol=0)
    assert result.routes["w"] == ("func" if parametrised else "fast")


def test_split(data) -> None:
    """Samples of different lengths in one flat tensor: no slice gets at them."""
    model, x, y = data
    lengths = [1, 3, 2]

    def flat_loss(model: MultiHead, batch: tuple[Tensor, list[int], Tensor]) -> Tensor:
        flat, sizes, labels = batch
        pooled = torch.stack([part.mean(0) for part in flat.split(sizes)])
        return F.cross_entropy(model(pooled, 1), labels)

    def split(batch: tuple[Tensor, list[int], Tensor]) -> list[Any]:
        parts = batch[0].split(batch[1])
        return [(part, [len(part)], batch[2][i : i + 1]) for i, part in enumerate(parts)]

    batch = (x, lengths, y[:3])
    weights = {"w": model.heads[1].weight}
    result = estimate(Problem(model, flat_loss, split=split), weights, [batch], kind="empirical")
    total = torch.zeros_like(weights["w"])
    for single in split(batch):
        total += torch.autograd.grad(flat_loss(model, single), weights["w"])[0] ** 2
    assert result.count == 3
    torch.testing.assert_close(result.mean()["w"], total / 3, rtol=1e-9, atol=0)
    # `batched` counts the samples by split= too: one batch of 3 with B = 20.
    batched = estimate(Problem(model, flat_loss, split=split), weights, [batch], kind="batched")
    assert batched.count == pytest.approx(3 / 20)


def test_a_table_is_not_cut_when_a_chunk_has_its_size() -> None:
    """Class weights of length 4 in a batch of 6: the chunk of 4 must not take them for rows."""
    torch.manual_seed(0)
    model = nn.Linear(2, 4).double()
    x, y, table = torch.randn(6, 2, dtype=torch.float64), torch.arange(6) % 4, torch.rand(4, dtype=torch.float64)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, y, table = batch
        assert table.shape == (4,)
        return (F.cross_entropy(model(x), y, reduction="none") * table[y]).mean()

    weights = {"w": model.weight}
    small = estimate(Problem(model, loss), weights, [(x, y, table)], kind="empirical", chunk=4)
    large = estimate(Problem(model, loss), weights, [(x, y, table)], kind="empirical", chunk=6)
    torch.testing.assert_close(small.squares["w"], large.squares["w"])


def test_empty_batches_between_others_count_nothing(data) -> None:
    model, x, y = data
    build, loss = MAKES["named tuple"]
    weights = {"w": model.heads[1].weight}
    batches = [build(x[:0], y[:0]), build(x[:4], y[:4]), build(x[:0], y[:0]), build(x[4:], y[4:])]
    result = estimate(Problem(model, loss), weights, batches, kind="empirical")
    assert result.count == N
    torch.testing.assert_close(result.mean()["w"], expected(model, x, y), rtol=1e-9, atol=0)


def test_samples() -> None:
    batch = {"id": 3, "scalar": torch.tensor(5.0), "x": torch.arange(6), "table": torch.zeros(4), "y": [torch.eye(6)]}
    samples = Samples.all_of(batch)
    assert size_of(batch) == samples.size == 6
    part = samples.take(2, 5)
    assert part.size == 3
    assert part.batch["x"].tolist() == [2, 3, 4]
    assert torch.equal(part.batch["y"][0], torch.eye(6)[2:5])
    assert part.batch["id"] == 3
    assert part.batch["table"].shape == (4,)
    assert [chunk.batch["x"].tolist() for chunk in samples.chunks(4)] == [[0, 1, 2, 3], [4, 5]]
    assert samples.pick(torch.tensor([5, 0])).batch["x"].tolist() == [5, 0]
    assert batch["x"].tolist() == [0, 1, 2, 3, 4, 5]


def test_map_tensors_keeps_the_make() -> None:
    batch = (Pair(torch.zeros(2), "y"), Encoding({"a": torch.zeros(2)}, "n"), OrderedDict(b=[torch.zeros(2)]))
    pair, encoding, ordered = map_tensors(lambda tensor: tensor + 1, batch)
    assert isinstance(pair, Pair)
    assert pair.y == "y"
    assert isinstance(encoding, Encoding)
    assert encoding.note == "n"
    assert encoding.a.tolist() == [1, 1]
    assert isinstance(ordered, OrderedDict)
    assert batch[1].a.tolist() == [0, 0], "the user's own batch is left alone"
