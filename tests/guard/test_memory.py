"""What a block takes in memory: few copies, forecast before the start, the same numbers; and nothing of a frozen base."""

from __future__ import annotations

import gc
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

import afec
from afec.gaussian import Derived, Gaussian, merge
from afec.guard import gradients
from afec.guard import task as guarded
from afec.guard.borrow import borrowed

WIDTH = 128


def bench(name):
    """A script of bench/, as a module."""
    if name not in sys.modules:
        path = Path(__file__).parents[2] / "bench" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 10))


def data(number, samples=8):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(samples, WIDTH, generator=generator), torch.randint(0, 10, (samples,), generator=generator)


def steps(model, optimizer, batch, count=3):
    for _ in range(count):
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()


def learned(guard, tasks=2, model=None, course=None):
    """The weights after some tasks; marks before and after each entry and exit."""
    model = net() if model is None else model
    optimizer = optim.Adam(model.parameters(), 1e-3)
    mark = (lambda name: None) if course is None else course.mark
    for number in range(1, tasks + 1):
        batch = data(number)
        mark(f"before {number}")
        task = None if guard is None else guard.begin(model, optimizer, batch, nn.CrossEntropyLoss(), seed=0)
        mark(f"entered {number}")
        if task is not None:
            task.epoch()
        steps(model, optimizer, batch)
        mark(f"learned {number}")
        if task is not None:
            task.end()
        del task
        mark(f"ended {number}")
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def both(ewc=None, **options):
    return afec.EWC(100.0, fisher="empirical", **(ewc or {})) + afec.AFEC(0.5, epochs=5, fisher="empirical", **options)


BFLOAT16 = {"store": "bfloat16"}
GUARDS = {
    "ewc": (lambda: afec.EWC(100.0, fisher="empirical"), 2),
    "ewc bfloat16": (lambda: afec.EWC(100.0, fisher="empirical", **BFLOAT16), 1.5),
    "mas": (lambda: afec.MAS(1.0), 2),
    "si": (lambda: afec.SI(1.0), 4),
    "rwalk": (lambda: afec.RWALK(1.0), 6),
    "ewc+afec": (lambda: both(), 5),
    "ewc+afec main": (lambda: both(expand_from="main"), 4),
    "ewc+afec carry": (lambda: both(expand_from="carry"), 5),
    "ewc+afec bfloat16": (lambda: both(BFLOAT16, **BFLOAT16), 4),
    "ewc+afec bfloat16 main": (lambda: both(BFLOAT16, **BFLOAT16, expand_from="main"), 3),
}


@pytest.fixture
def derived(monkeypatch):
    """As for a large net."""
    monkeypatch.setattr(guarded, "KEPT_UP_TO", 0)
    monkeypatch.setattr(gradients, "TOGETHER", 2**10)


def course_of(guard):
    gc.collect()
    return bench("live_memory").watched(lambda course: learned(guard, course=course))


@pytest.mark.slow
@pytest.mark.usefixtures("derived")
@pytest.mark.parametrize("name", GUARDS)
def test_a_block_takes_so_many_copies_and_check_has_said_so(name, capsys):
    make, copies = GUARDS[name]
    weights = 4 * sum(weight.numel() for weight in net().parameters())
    model = net()
    report = make().check(model, optim.Adam(model.parameters(), 1e-3), data(1), nn.CrossEntropyLoss(), seconds=0.1)
    assert str(report.memory) in capsys.readouterr().out
    plain, course = course_of(None), course_of(make())
    rest = plain.at("learned 2")
    taken = course.at("learned 2") - rest
    assert taken == pytest.approx(copies * weights, rel=0.02)
    assert report.memory.total == pytest.approx(taken, rel=0.1)
    assert report.memory.weights == weights
    if name not in ("si", "rwalk", "mas"):  # two states for a moment and no pass over the data; the signs of a gradient
        for when, said in (("entry", report.memory.entry), ("exit", report.memory.exit)):
            marks = ("before 2", "entered 2") if when == "entry" else ("learned 2", "ended 2")
            assert course.peak(*marks) - rest == pytest.approx(said, rel=0.1), when


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ewc", "ewc+afec", "ewc+afec main"])
def test_a_small_net_keeps_what_makes_its_steps_fast_and_check_says_so(name):
    make, copies = GUARDS[name]
    model = net()
    report = make().check(model, optim.Adam(model.parameters(), 1e-3), data(1), nn.CrossEntropyLoss(), seconds=0.1)
    taken = course_of(make()).at("learned 2") - course_of(None).at("learned 2")
    assert report.memory.total == pytest.approx(taken, rel=0.1)
    assert set(report.memory.parts) & {"D", "c"} == ({"D"} if name == "ewc" else {"D", "c"})
    assert taken == pytest.approx((copies + (1 if name == "ewc" else 2)) * report.memory.weights, rel=0.02)


@pytest.mark.parametrize("expand_from", ["init", "main", "carry"])
@pytest.mark.parametrize("own", [None, lambda params: optim.SGD(params, 0.1, momentum=0.9)], ids=["Adam", "momentum"])
def test_an_expansion_epoch_by_epoch_is_counted_with_its_optimiser(own, expand_from):
    def make():
        options = {"schedule": "interleaved", "optimizer": own, "expand_from": expand_from, "fisher": "empirical"}
        return afec.EWC(100.0, fisher="empirical") + afec.AFEC(0.5, **options)

    model = net()
    report = make().check(model, optim.Adam(model.parameters(), 1e-3), data(1), nn.CrossEntropyLoss(), seconds=0.1)
    taken = course_of(make()).at("learned 2") - course_of(None).at("learned 2")
    assert report.memory.parts["afec the optimiser of θ_e"] == (2 if own is None else 1) * report.memory.weights
    assert report.memory.total == pytest.approx(taken, rel=0.1)


@pytest.mark.parametrize("name", [*GUARDS, "three terms"])
def test_derived_or_kept_the_numbers_are_the_same(name, monkeypatch):
    make = (lambda: both() + afec.MAS(1.0)) if name == "three terms" else GUARDS[name][0]
    kept = learned(make(), tasks=3)
    monkeypatch.setattr(guarded, "KEPT_UP_TO", 0)
    for together in (2**20, 1000):
        monkeypatch.setattr(gradients, "TOGETHER", together)
        assert torch.equal(learned(make(), tasks=3), kept)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=3), st.integers(0, 2**31))
def test_a_derived_sum_is_the_merged_one(strengths, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return {name: torch.randn(3, 2, generator=generator) for name in "ab"}

    terms = [(weight, Gaussian(draw(), {k: v.abs() for k, v in draw().items()})) for weight in strengths]
    at, one, other = draw(), Derived.of(terms), merge(terms)
    assert one.pull(at).keys() == other.pull(at).keys()
    assert all(torch.equal(pull, other.pull(at)[name]) for name, pull in one.pull(at).items())
    assert torch.equal(one.penalty(at), other.penalty(at))


@pytest.mark.usefixtures("derived")
def test_penalties_pulls_and_state_inside_a_block_are_complete():
    model, guard = net(), both()
    optimizer = optim.Adam(model.parameters(), 1e-3)
    for number in (1, 2):
        batch = data(number)
        with guard.learning(model, optimizer, batch, nn.CrossEntropyLoss()) as task:
            steps(model, optimizer, batch, 2)
            if number == 2:
                state = guard.state_dict()
                assert float(task.penalty()) == pytest.approx(float(sum(task.penalties().values())), rel=1e-4)
                middle = ({k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict())
                middle = torch.load(_saved(middle), weights_only=True)
                steps(model, optimizer, batch, 2)
    again, resumed = net(), both()
    again.load_state_dict(middle[0])
    optimizer = optim.Adam(again.parameters(), 1e-3)
    optimizer.load_state_dict(middle[1])
    resumed.load_state_dict(torch.load(_saved(state), weights_only=True))
    with resumed.learning(again, optimizer, data(2), nn.CrossEntropyLoss()):
        steps(again, optimizer, data(2), 2)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def _saved(thing):
    import io

    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.usefixtures("derived")
def test_a_weight_that_is_moved_to_another_type_is_pulled_as_before():
    """θ*, D and c follow the weight: from then on they are kept in its type."""
    model, guard = net(), both()
    optimizer = optim.SGD(model.parameters(), 0.1)
    for number in (1, 2):
        with guard.learning(model, optimizer, data(number), nn.CrossEntropyLoss()) as task:
            if number == 2:
                model.double()
                task.accept()
                model.zero_grad(set_to_none=True)
                for weight in model.parameters():
                    weight.grad = torch.zeros_like(weight)
                task.pull()
                found = [weight.grad.clone() for weight in model.parameters()]
                expected = torch.autograd.grad(_penalty(guard, model), list(model.parameters()))
                for one, other in zip(found, expected, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-10)
                task.abort()
                break


def _penalty(guard, model):
    state, total = guard.state_dict(), 0.0
    for weight, own in ((100.0, state["states"]["ewc"]), (0.5, state["task_states"]["afec"])):
        for name, value in model.named_parameters():
            total = (
                total + weight / 2 * (own["precision"][name].double() * (value - own["mean"][name].double()) ** 2).sum()
            )
    return total


def test_bfloat16_rounds_precisions_only_and_little():
    exact, rounded = both(), both(BFLOAT16, **BFLOAT16)
    one, other = learned(exact), learned(rounded)
    assert not torch.equal(one, other)
    torch.testing.assert_close(one, other, rtol=0, atol=0.02 * float((one - learned(None)).abs().max()))
    kept = rounded.state_dict()["states"]["ewc"]
    assert {value.dtype for value in kept["precision"].values()} == {torch.bfloat16}
    assert {value.dtype for value in kept["mean"].values()} == {torch.float32}


def test_on_the_cpu_nothing_changes_by_resting_there():
    assert torch.equal(learned(both({"store": "cpu"}, store="cpu")), learned(both()))


@pytest.mark.parametrize("value", ["disk", 3])
def test_an_unknown_store_raises(value):
    with pytest.raises(ValueError, match="store must be one of 'cpu', 'bfloat16'; got"):
        afec.EWC(1.0, store=value)


# -- LoRA ---------------------------------------------------------------------------------------------------------------


class Adapted(nn.Module):
    """A frozen layer with a low-rank one beside it."""

    def __init__(self, width=1024, rank=2):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.a, self.b = nn.Linear(width, rank, bias=False), nn.Linear(rank, 10)

    def forward(self, x):
        return self.b(self.a(torch.tanh(self.base(x))))


@pytest.mark.slow
@pytest.mark.parametrize("expand_from", ["init", "carry", "main"])
def test_of_a_frozen_base_nothing_is_copied(expand_from):
    """Not even for a moment: the peak of everything that the guard does stays below a quarter of a copy of the base."""
    torch.manual_seed(0)
    model = Adapted()
    base = 4 * sum(weight.numel() for weight in model.base.parameters())
    x, y = torch.randn(4, 1024), torch.randint(0, 10, (4,))
    optimizer = optim.Adam(model.parameters(), 1e-3)  # as people do: the frozen weights are in it, too
    guard = both(expand_from=expand_from)

    def run(course):
        for _ in (1, 2):
            with guard.learning(model, optimizer, (x, y), nn.CrossEntropyLoss()):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    gc.collect()
    assert bench("live_memory").watched(run).peak() < base / 4
    saved = guard.state_dict()["states"]
    assert all("base" not in name for state in saved.values() for part in state.values() for name in part)


def test_a_frozen_weight_that_is_thawed_on_borrowed_weights_is_put_back():
    torch.manual_seed(0)
    model = Adapted()
    before = model.base.weight.clone()
    with borrowed(model):
        model.base.requires_grad_(True)
        optimizer = optim.SGD(model.parameters(), 0.5)
        model(torch.randn(4, 1024)).sum().backward()
        optimizer.step()
        assert not torch.equal(model.base.weight, before)
    assert torch.equal(model.base.weight, before)
    assert not model.base.weight.requires_grad


def test_a_frozen_weight_that_is_changed_otherwise_is_named():
    model = Adapted()
    with pytest.raises(RuntimeError, match=r"a frozen weight of shape \(1024, 1024\) was changed.*not by an optimiser"):  # noqa: SIM117
        with borrowed(model):
            model.base.weight.data.add_(1)


def test_what_the_earlier_task_left_needs_no_copy():
    model = net()
    means = {name: [weight.detach().clone()] for name, weight in model.named_parameters()}
    gc.collect()
    course = bench("live_memory").watched(lambda course: _borrow(model, means))
    assert course.peak() < 4 * WIDTH * WIDTH
    _borrow(model, {})


def _borrow(model, known):
    before = [weight.detach().clone() for weight in list(model.parameters())[-1:]]
    with borrowed(model, known=known), torch.no_grad():
        list(model.parameters())[-1].add_(1)
    assert torch.equal(list(model.parameters())[-1], before[0])
