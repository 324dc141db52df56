"""The user's data and random numbers: our passes see the same samples and disturb nothing."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, TensorDataset

import afec
from two_tasks import Penalty, Run, apart, build, data, equal, learned_one_task, loader, plain_loop, plain_loss, sgd


def rng_states():
    kind, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), (kind, keys.tolist(), *rest)


def batches_seen(tensors, make_loader, guard):
    """What two epochs of a loop see, with or without a guard around them."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3)).double()
    optimizer, source = sgd(model), make_loader(tensors)
    seen = [batch[0].clone() for batch in source]  # the loader was in use before

    def epochs():
        for _ in range(2):
            for batch in source:
                seen.append(batch[0].clone())
                optimizer.zero_grad()
                plain_loss(model, batch).backward()
                optimizer.step()

    if guard is None:
        epochs()
        epochs()
    else:
        for _ in range(2):
            with guard.learning(model, optimizer, source, nn.CrossEntropyLoss()):
                epochs()
    return seen, rng_states()


class ShufflesItsOwnList(Sampler):
    """Keeps its order and its generator, and changes both while it is iterated."""

    def __init__(self, size):
        self.order, self.random = list(range(size)), random.Random(0)

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        self.random.shuffle(self.order)
        yield from self.order


class CountsEpochs(Sampler):
    """Another order in each epoch, from numpy."""

    def __init__(self, size):
        self.size, self.draws = size, np.random.default_rng(0)

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(self.draws.permutation(self.size).tolist())


class Buckets(BatchSampler):
    """Batches of its own."""

    def __init__(self, size):
        super().__init__(range(size), 4, False)
        self.size = size

    def __iter__(self):
        order = torch.randperm(self.size).tolist()
        yield from (order[i : i + 4] for i in range(0, self.size, 4))


LOADERS = {
    "sequential": lambda t: loader(t),
    "shuffled": lambda t: loader(t, shuffle=True),
    "generator": lambda t: loader(t, shuffle=True, generator=torch.Generator().manual_seed(7)),
    "sampler": lambda t: loader(t, sampler=RandomSampler(t[0], replacement=True, num_samples=20)),
    "sampler-with-generator": lambda t: loader(
        t, sampler=RandomSampler(t[0], generator=torch.Generator().manual_seed(9))
    ),
    "batch-sampler": lambda t: DataLoader(TensorDataset(*t), batch_sampler=Buckets(len(t[0]))),
    "own-list": lambda t: loader(t, sampler=ShufflesItsOwnList(len(t[0]))),
    "own-list-batched": lambda t: DataLoader(
        TensorDataset(*t), batch_sampler=BatchSampler(ShufflesItsOwnList(len(t[0])), 8, False)
    ),
    "numpy-generator": lambda t: loader(t, sampler=CountsEpochs(len(t[0]))),
    "drop-last": lambda t: loader(t, batch_size=9, shuffle=True, drop_last=True),
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_loop_sees_the_same_batches_with_and_without_a_guard(name, kind):
    tensors = data(1)
    expected, rng = batches_seen(tensors, LOADERS[name], None)
    seen, after = batches_seen(tensors, LOADERS[name], build(kind))
    assert len(seen) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    assert after == rng


class Rows(Dataset):
    """Says which worker fetched a row, and how many rows that worker has fetched so far."""

    def __init__(self):
        self.fetched = 0

    def __len__(self):
        return 24

    def __getitem__(self, index):
        self.fetched += 1
        return torch.full((4,), index / 24, dtype=torch.float64), index % 3, self.fetched


def loss_of_rows(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_persistent_workers_are_undisturbed():
    """The same order from the same worker processes, whose own counters go on: nobody else used them."""

    def run(guard):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 3)).double()
        source = DataLoader(Rows(), 8, shuffle=True, num_workers=1, persistent_workers=True)
        optimizer, seen, workers = sgd(model), [], []

        def epoch():
            for batch in source:
                seen.append((batch[0].clone(), batch[2].clone()))
                optimizer.zero_grad()
                loss_of_rows(model, batch).backward()
                optimizer.step()
            workers.append([worker.pid for worker in source._iterator._workers])

        epoch()
        for _ in range(2):
            if guard is None:
                epoch()
            else:
                with guard.learning(model, optimizer, source, loss_of_rows, likelihood="categorical"):
                    epoch()
        assert workers[0] == workers[1] == workers[2]
        return seen

    expected = run(None)
    seen = run(build("ewc+afec"))
    assert [int(fetched[-1]) for _, fetched in expected[2::3]] == [24, 48, 72]
    for one, other in zip(seen, expected, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_a_loader_in_mid_epoch_goes_on_where_it_was(kind):
    """A block opened between two batches of one iterator."""
    model, guard = learned_one_task(kind)
    source, second = loader(data(2), shuffle=True, generator=torch.Generator().manual_seed(1)), data(2)
    expected = [batch[0] for batch in loader(second, shuffle=True, generator=torch.Generator().manual_seed(1))]
    running = iter(source)
    seen = [next(running)[0]]
    with guard.learning(model, sgd(model), source, nn.CrossEntropyLoss()):
        seen.append(next(running)[0])
    seen.append(next(running)[0])
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))


@pytest.mark.parametrize("moment", ["begin", "end"])
def test_random_numbers_are_undisturbed(moment, kind):
    model, guard = learned_one_task(kind)
    model.append(nn.Dropout(0.5))
    before = rng_states()
    task = guard.begin(model, sgd(model), data(2), nn.CrossEntropyLoss())
    if moment == "begin":
        assert rng_states() == before
        task.abort()
        return
    plain_loop(Run(model, sgd(model), plain_loss, batches=list(loader(data(2)))))
    before = rng_states()
    task.end()
    assert rng_states() == before


def test_what_the_guard_does_depends_on_the_seed_only_and_not_on_draws_before_it(kind):
    """Same seed, other draws in between: the same θ_e and the same Fisher."""
    states = []
    for draws in (0, 5):
        torch.manual_seed(0)
        model, guard = learned_one_task(kind)
        torch.rand(draws)
        np.random.rand(draws)
        source = loader(data(2), shuffle=True)
        with guard.learning(model, sgd(model), source, nn.CrossEntropyLoss()):
            states.append(copy.deepcopy(guard.state_dict()))
    one, other = states
    for term in one["task_states"]:
        for part in one["task_states"][term].values():
            assert isinstance(part, dict)
    precision = [s["task_states"].get("afec", s["states"]["ewc"])["precision"] for s in (one, other)]
    assert all(torch.equal(precision[0][name], precision[1][name]) for name in precision[0])


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*data(2), strict=True)


FORMS = {
    "tensors": lambda: data(2),
    "list-of-tensors": lambda: list(data(2)),
    "loader": lambda: loader(data(2)),
    "dataset": lambda: TensorDataset(*data(2)),
    "iterable-dataset": Stream,
    "iterable-dataset-in-a-loader": lambda: DataLoader(Stream(), 8),
    "list-of-batches": lambda: list(loader(data(2))),
    "function": lambda: lambda: iter(list(loader(data(2)))),
    "unbatched-loader": lambda: DataLoader(list(loader(data(2))), batch_size=None),
    "collate": lambda: DataLoader(range(24), 8, collate_fn=lambda rows: [part[rows] for part in data(2)]),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_data_gives_the_same_fisher_and_an_expansion(name, kind):
    model, guard = learned_one_task(kind)
    twin, other = copy.deepcopy(model), build(kind)
    other.load_state_dict(guard.state_dict())
    with guard.learning(model, sgd(model), FORMS[name](), nn.CrossEntropyLoss()):
        assert ("afec" in guard.state_dict()["task_states"]) == (kind != "ewc")
    with other.learning(twin, sgd(twin), data(2), nn.CrossEntropyLoss()):
        pass
    found, expected = (g.state_dict()["states"]["ewc"]["precision"] for g in (guard, other))
    for weight in expected:
        torch.testing.assert_close(found[weight], expected[weight], rtol=1e-9, atol=1e-12)


# -- batches and losses of all kinds --------------------------------------------------------------------------------


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(4, 6), nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x, task_id):
        return self.heads[task_id](torch.tanh(self.body(x)))


def with_reference(model, tasks, loss_fn, make_guard, **options):
    """Two tasks under a guard; the second one against autograd on loss + penalty."""
    guard = make_guard(model)
    for batches in tasks:
        twin = copy.deepcopy(model)
        twin.zero_grad()
        model.zero_grad()
        with guard.learning(model, sgd(model), batches, loss_fn, **options):
            penalty = Penalty(guard)
            plain_loop(Run(model, sgd(model), loss_fn, batches=batches))
    free = copy.deepcopy(twin)
    plain_loop(Run(free, sgd(free), loss_fn, batches=tasks[-1]))

    def reference_loss(model, batch):
        return loss_fn(model, batch) + penalty(model)

    for _ in range(3):
        for batch in tasks[-1]:
            twin.zero_grad()
            reference_loss(twin, batch).backward()
            for weight, used in zip(twin.parameters(), model.parameters(), strict=True):
                if used.grad is None:
                    weight.grad = None  # the documented difference
            sgd(twin).step()
    assert apart(twin, free) > 1e-5
    assert apart(model, twin) < 1e-9
    return guard


def empirical(kind):
    def make(model):
        guard = afec.EWC(30.0, fisher="empirical")
        factory = {"epochs": 5, "optimizer": lambda params: torch.optim.SGD(params, 0.5)}
        return guard if kind == "ewc" else guard + afec.AFEC(4.0, fisher="empirical", **factory)

    return make


def test_a_task_id_in_the_batch(kind):
    def loss(model, batch):
        x, y, task_id = batch
        return nn.functional.cross_entropy(model(x, task_id), y)

    tasks = [[(x, y, number) for x, y in loader(data(number + 1))] for number in range(2)]
    with_reference(MultiHead().double(), tasks, loss, empirical(kind))


def test_a_task_id_with_the_exact_fisher_by_predict(kind):
    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0], batch[2]), batch[1])

    tasks = [[(x, y, number) for x, y in loader(data(number + 1))] for number in range(2)]
    with_reference(
        MultiHead().double(),
        tasks,
        loss,
        lambda _: build(kind, fisher="exact"),
        predict=lambda model, batch: model(batch[0], batch[2]),
        likelihood="categorical",
    )


def test_dict_batches(kind):
    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["labels"])

    tasks = [[{"x": x, "labels": y, "names": ["a", "b"]} for x, y in loader(data(number))] for number in (1, 2)]
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    with_reference(model, tasks, loss, empirical(kind))


def test_a_loss_that_holds_the_model_itself(kind):
    """A closure over the model sees θ_e while the module is borrowed, so that θ_e is trained and not θ."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    guard = empirical(kind)(model)

    def loss(_, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    for number in (1, 2):
        source = loader(data(number))
        before = copy.deepcopy(model)
        with guard.learning(model, sgd(model), source, loss):
            assert equal(model, before)
            if kind != "ewc" and number == 2:
                assert not torch.equal(guard.state_dict()["task_states"]["afec"]["mean"]["0.weight"], model[0].weight)
            plain_loop(Run(model, sgd(model), loss, batches=list(source)), epochs=1)
    assert guard.tasks_done == 2
