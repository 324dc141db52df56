"""`fisher_samples=N`: the Fisher of a part of the data, drawn at random, in every kind of data."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

import afec
from afec.streams import digits


class Scale(nn.Module):
    """f = w·x, so that the Fisher of ½(f − y)² at f − y = 1 tells which x were seen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return self.weight * x


class Stream(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        return iter([(one,) for one in self.x])


SAMPLES = 20
X_SMALL = 2.0 ** torch.arange(SAMPLES, dtype=torch.float64)  # the sum of their squares tells which of them it has


def linear(model, batch):
    return model(batch[0]).mean()  # the gradient of a sample is x, and its square 4^i


def seen(guard, data, **options):
    """Which samples a Fisher was measured on, read off its value."""
    guard.begin(Scale(), None, data, linear, seed=options.pop("seed", 0), **options).end()
    return guard.state_dict()["states"]["ewc"]["precision"]["weight"]


def of(total, count):
    number = round(float(total) * count)
    return [i for i in range(SAMPLES) if number >> (2 * i) & 1]


SOURCES = {
    "tensors": lambda: (X_SMALL,),
    "loader": lambda: DataLoader(TensorDataset(X_SMALL), 3),
    "shuffled loader": lambda: DataLoader(TensorDataset(X_SMALL), 3, shuffle=True, drop_last=True),
    "list": lambda: [(part,) for part in X_SMALL.split(3)],
    "function": lambda: lambda: [(part,) for part in X_SMALL.split(3)],
    "stream": lambda: DataLoader(Stream(X_SMALL), 3),
    "own batches": lambda: DataLoader(
        TensorDataset(X_SMALL), batch_sampler=Own(SequentialSampler(range(20)), 3, drop_last=False)
    ),
}


class Own(BatchSampler):
    pass


@pytest.mark.parametrize("source", SOURCES)
def test_so_many_samples_are_seen(source):
    found = of(seen(afec.EWC(1.0, fisher="empirical", fisher_samples=7), SOURCES[source]()), 7)
    assert len(found) == 7
    if source in ("list", "function", "stream", "own batches"):
        assert found == list(range(7))  # what has no order of its own comes as it comes
    else:
        assert found != list(range(7))


@pytest.mark.parametrize("source", SOURCES)
def test_more_than_there_are_is_all_of_them(source):
    part = seen(afec.EWC(1.0, fisher="empirical", fisher_samples=1000), SOURCES[source]())
    assert torch.equal(part, seen(afec.EWC(1.0, fisher="empirical"), SOURCES[source]()))


def test_the_draw_depends_on_the_seed_alone():
    def one(seed):
        guard = afec.EWC(1.0, fisher="empirical", fisher_samples=7)
        return of(seen(guard, (X_SMALL,), seed=seed), 7)

    assert one(0) == one(0)
    assert one(0) != one(1)


def test_batched_takes_them_in_batches_of_its_own_size():
    """Two batches of three: F = (3/6)·Σ_b (mean of x)² over the six that are seen."""
    guard = afec.EWC(1.0, fisher="batched", fisher_batch=3, fisher_samples=6)
    total = float(seen(guard, (X_SMALL,)))
    chosen = of(seen(afec.EWC(1.0, fisher="empirical", fisher_samples=6), (X_SMALL,)), 6)
    x = X_SMALL[chosen]
    assert total == pytest.approx(float((x[:3].mean() ** 2 + x[3:].mean() ** 2) / 2))


@pytest.mark.parametrize("term", ["ewc", "afec"])
def test_on_digits_it_costs_less_and_gives_another_result(term):
    def run(**options):
        torch.manual_seed(0)
        stream = digits(seed=0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 2))
        own = {"ewc": {}, "afec": {}, term: options}
        guard = afec.EWC(10.0, **own["ewc"]) + afec.AFEC(1.0, epochs=1, **own["afec"])
        counts = []
        for task in stream.tasks[:2]:
            optimizer = optim.SGD(model.parameters(), 0.1)
            data = (task.train.inputs, task.train.targets)
            with guard.learning(model, optimizer, data, nn.CrossEntropyLoss()) as current:
                for x, y in zip(data[0].split(32), data[1].split(32), strict=True):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
            counts.append(current.samples_measured)
        return torch.cat([weight.detach().flatten() for weight in model.parameters()]), counts

    (whole, all_of_them), (part, fewer) = run(), run(fisher_samples=20)
    assert not torch.equal(whole, part)
    assert fewer[1] < all_of_them[1]


@pytest.mark.parametrize("value", [0, -3, 2.5, "all"])
def test_what_is_no_number_of_samples_raises(value):
    with pytest.raises(ValueError, match=r"fisher_samples must be an integer ≥ 1; got"):
        afec.EWC(1.0, fisher_samples=value)
