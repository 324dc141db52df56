"""One graph at a time, and no memory that grows with the data."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import KINDS, Problem, estimate

pytestmark = pytest.mark.slow  # peaks are measured on layers of some size


class Net(nn.Module):
    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3)
        self.mix = nn.GRU(8, 8, batch_first=True) if recurrent else nn.Bilinear(8, 8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return self.head(self.mix(h.mT)[0].mean(1) if isinstance(self.mix, nn.GRU) else self.mix(h.mean(2), h.amax(2)))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.fixture
def frozen() -> Iterator[None]:
    """Let the collector forget what is there already, so that it is quick to say what is new."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_bytes() -> int:
    """The size of all tensors that Python can reach and that are new since `frozen`."""
    gc.collect()
    storages = [thing.untyped_storage() for thing in gc.get_objects() if type(thing) in (Tensor, nn.Parameter)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("recurrent", [False, True], ids=["func", "loop"])
@pytest.mark.parametrize("kind", KINDS)
def test_live_tensors_do_not_grow(kind: str, recurrent: bool) -> None:
    """While the data run, every batch is let go, and so is everything that was made from it."""
    torch.manual_seed(0)
    model = Net(recurrent).double()
    seen: list[int] = []

    def stream() -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(8):
            seen.append(live_bytes())
            yield torch.randn(10, 3, 9, dtype=torch.float64, generator=generator), torch.arange(10) % 4

    problem = Problem(model, loss, lambda m, b: m(b[0]), "categorical")
    estimate(problem, dict(model.named_parameters()), stream(), kind=kind, chunk=4)
    # The first is before there is a plan, and at each of the others the last batch is still around.
    assert len(set(seen[1:])) == 1, f"live bytes at each batch: {seen}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_process_does_not_grow(kind: str) -> None:
    """What C++ holds (saved activations) does not show in Python: look at the process itself."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.Tanh(), nn.Conv2d(16, 16, 3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)
    )
    batch = (torch.randn(8, 3, 32, 32), torch.arange(8) % 2)
    loss(model, batch)
    process, seen = psutil.Process(), []
    graph = 4 * 8 * 16 * (2 * 30 * 30 + 2 * 28 * 28)  # bytes that one batch's graph saves, at least

    def stream() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(40):
            seen.append(process.memory_info().rss)
            yield batch

    problem = Problem(model, loss, lambda m, b: m(b[0]), "categorical")
    estimate(problem, dict(model.named_parameters()), stream(), kind=kind, chunk=4)
    assert max(seen[10:]) - max(seen[:10]) < 10 * graph, "30 batches must not hold the memory of 10"


@pytest.mark.parametrize("kind", KINDS)
def test_one_graph_at_a_time(kind: str) -> None:
    """When a forward pass starts, no tensor that an earlier one saved for its backward pass is alive."""
    alive = 0
    most_at_start = 0

    class Watched(torch.autograd.Function):
        """The identity, which knows whether its graph is still there."""

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def setup_context(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:
            nonlocal alive
            alive += 1
            ctx.token = Token()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            return grad

    class Token:
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 5), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            nonlocal most_at_start
            most_at_start = max(most_at_start, alive)
            return self.two(Watched.apply(self.one(x)))

    torch.manual_seed(0)
    model = Body()
    x, y = torch.randn(24, 3), torch.arange(24) % 4
    problem = Problem(model, loss, lambda m, b: m(b[0]), "categorical")
    batches = list(zip(x.split(8), y.split(8), strict=True))
    result = estimate(problem, dict(model.named_parameters()), batches, kind=kind, chunk=4)
    assert set(result.routes.values()) == ({"batch"} if kind == "batched" else {"fast"})
    assert most_at_start <= 1, "the graph of the last forward pass may go when its name is used again, no other"
    gc.collect()
    assert alive == 0


def test_no_per_sample_gradient_of_a_linear_layer() -> None:
    """(g²)ᵀ(a²) needs none: the most memory in one tensor is the layer's own size, not 16 times that."""
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                if isinstance(tensor, Tensor):
                    largest = max(largest, tensor.untyped_storage().nbytes() // tensor.element_size())
            return result

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 3))
    problem = Problem(model, loss, lambda m, b: m(b[0]), "categorical")
    with Largest():
        result = estimate(
            problem, dict(model.named_parameters()), [(torch.randn(64, 300), torch.arange(64) % 3)], kind="exact"
        )
    assert set(result.routes.values()) == {"fast"}
    assert largest == 300 * 200
