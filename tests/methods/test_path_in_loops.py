"""The path in all kinds of loops: g is the task's gradient as the step used it, δ the change of the outermost step."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_weight import Line, half_square, point, state_of, steps
from torch import nn

from afec import EWC, MAS, RWALK, SI
from afec.guard import Term

STRENGTH = 4.0


def net():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def data(number):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    return x, (x.sum(1) * (1 - 2 * number) > 0).long()


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Record(Term):
    """Keeps all that it sees, beside another method that pulls."""

    name, rank = "record", 9

    def __init__(self, wants=("gradient", "total")):
        super().__init__()
        self.wants, self.steps, self.is_off_ = frozenset(wants), [], False

    observes = property(lambda self: self.wants)
    is_off = property(lambda self: False)

    def described(self):
        return "Record()"

    def after_step(self, task, task_state, step):
        self.steps.append(step)
        return task_state

    def quadratics(self, task, state, task_state):
        return []

    def preview(self, task, state, seconds):
        return []

    def end_task(self, task, state, task_state):
        return {}


class Watched:
    """The second task under EWC and a record; what each step should be is added up beside it."""

    def __init__(self, make=lambda params: torch.optim.SGD(params, 0.3), guard=None):
        self.record = Record()
        self.model, self.guard = net(), (EWC(STRENGTH) if guard is None else guard) + self.record
        first = torch.optim.SGD(self.model.parameters(), 0.3)
        with self.guard.learning(self.model, first, data(0), nn.CrossEntropyLoss()):
            for _ in range(5):
                first.zero_grad()
                loss_of(self.model, data(0)).backward()
                first.step()
        self.model.zero_grad()
        self.record.steps.clear()
        self.optimizer = make(self.model.parameters())
        with torch.no_grad():  # so that the pull is there from the first step on
            for p in self.model.parameters():
                p += 0.1

    def __enter__(self):
        self.task = self.guard.begin(self.model, self.optimizer, data(1), nn.CrossEntropyLoss())
        return self

    def __exit__(self, *error):
        self.task.abort()

    def values(self):
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def gradient(self, batch=None):
        grads = torch.autograd.grad(loss_of(self.model, batch or data(1)), list(self.model.parameters()))
        return dict(zip(self.values(), grads, strict=True))

    def pull(self):
        state = self.guard.state_dict()["states"]["ewc"]
        return {n: STRENGTH * state["precision"][n] * (p - state["mean"][n]) for n, p in self.values().items()}

    def backward(self, batch=None, factor=1.0):
        (factor * loss_of(self.model, batch or data(1))).backward()


def check(found, gradient, pull, before, after, share=1.0):
    """The step is g, g + s·pull where the pull was clipped too, and the change."""
    for name in before:
        torch.testing.assert_close(found.gradient[name], gradient[name], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.total[name], gradient[name] + share * pull[name], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.change[name], after[name] - before[name], rtol=1e-12, atol=0)
    assert any(bool(pull[name].abs().max() > 1e-3) for name in pull)


def test_a_plain_step():
    with Watched() as run:
        for _ in range(3):
            before, gradient, pull = run.values(), run.gradient(), run.pull()
            run.optimizer.zero_grad()
            run.backward()
            run.optimizer.step()
            check(run.record.steps[-1], gradient, pull, before, run.values())
    assert len(run.record.steps) == 3


def test_only_what_is_asked_for_is_kept():
    run = Watched()
    for wants in ("gradient", "total"):
        run.record.wants = frozenset({wants})
        with run:
            run.backward()
            run.optimizer.step()
        other = "total" if wants == "gradient" else "gradient"
        assert getattr(run.record.steps[-1], wants)
        assert not getattr(run.record.steps[-1], other)


@pytest.mark.parametrize("calls", ["once", "every micro-batch", "clipped in between"])
@pytest.mark.parametrize("limit", [1e-2, 1e6])
def test_accumulation_and_clipping_with_the_pull_inside(calls, limit):
    """`.grad` is s·(g + pull); the task's part of it is s·g."""
    x, y = data(1)
    parts = [(x[:5], y[:5]), (x[5:], y[5:])]
    with Watched() as run:
        for _ in range(2):
            before, pull = run.values(), run.pull()
            run.optimizer.zero_grad()
            own = {name: torch.zeros_like(value) for name, value in before.items()}
            share = 0.0
            for number, part in enumerate(parts):
                for name, grad in run.gradient(part).items():
                    own[name] += grad
                run.backward(part)
                if calls != "once" or number == 1:
                    run.task.pull()
                    run.task.pull()  # as often as one likes
                    share = share or 1.0
                if calls == "clipped in between" and number == 0:
                    norm = float(nn.utils.clip_grad_norm_(run.model.parameters(), limit / 2))
                    scale = min(1.0, limit / 2 / (norm + 1e-6))
                    own, share = {name: scale * value for name, value in own.items()}, scale
            norm = float(nn.utils.clip_grad_norm_(run.model.parameters(), limit))
            scale = min(1.0, limit / (norm + 1e-6))
            run.optimizer.step()
            own, share = {name: scale * value for name, value in own.items()}, share * scale
            check(run.record.steps[-1], own, pull, before, run.values(), share)
    assert len(run.record.steps) == 2


@given(st.lists(st.sampled_from(["backward", "pull", "clip", "halve"]), max_size=8).map(lambda ops: ["backward", *ops]))
def test_whatever_is_done_to_the_gradient(operations):
    """Any order of backward, task.pull(), clipping and scaling: what is left of the task's part is s·g."""
    with Watched() as run:
        before, own_gradient, pull = run.values(), run.gradient(), run.pull()
        own, share = {name: torch.zeros_like(value) for name, value in before.items()}, 0.0
        run.optimizer.zero_grad()
        for operation in operations:
            factor = 1.0
            if operation == "backward":
                run.backward()
                own = {name: value + own_gradient[name] for name, value in own.items()}
            elif operation == "pull":
                run.task.pull()
                share = share or 1.0
            elif operation == "clip":
                factor = min(1.0, 0.3 / (float(nn.utils.clip_grad_norm_(run.model.parameters(), 0.3)) + 1e-6))
            else:
                factor = 0.5
                for p in run.model.parameters():
                    p.grad *= 0.5
            own, share = {name: factor * value for name, value in own.items()}, factor * share
        run.optimizer.step()
        check(run.record.steps[-1], own, pull, before, run.values(), share or 1.0)


def test_clipping_without_pull_clips_the_gradient_alone():
    with Watched() as run:
        before, gradient, pull = run.values(), run.gradient(), run.pull()
        run.backward()
        norm = float(nn.utils.clip_grad_norm_(run.model.parameters(), 1e-2))
        run.optimizer.step()
        scale = 1e-2 / (norm + 1e-6)
        check(run.record.steps[-1], {n: scale * g for n, g in gradient.items()}, pull, before, run.values())


@pytest.mark.parametrize("make", [
    lambda params: torch.optim.SGD(params, 0.3),
    lambda params: torch.optim.LBFGS(params, 0.1, max_iter=3),
], ids=["sgd", "lbfgs"])  # fmt: skip
def test_closures_count_their_first_gradient(make):
    with Watched(make) as run:
        for _ in range(2):
            before, gradient, pull = run.values(), run.gradient(), run.pull()

            def closure():
                run.optimizer.zero_grad()
                value = loss_of(run.model, data(1))
                value.backward()
                return value

            run.optimizer.step(closure)
            check(run.record.steps[-1], gradient, pull, before, run.values())
    assert len(run.record.steps) == 2


def test_a_closure_that_pulls_and_clips():
    with Watched() as run:
        before, gradient, pull = run.values(), run.gradient(), run.pull()
        scales = []

        def closure():
            run.optimizer.zero_grad()
            value = loss_of(run.model, data(1))
            value.backward()
            run.task.pull()
            scales.append(1e-2 / (float(nn.utils.clip_grad_norm_(run.model.parameters(), 1e-2)) + 1e-6))
            return value

        run.optimizer.step(closure)
        scaled = {name: scales[0] * grad for name, grad in gradient.items()}
        check(run.record.steps[-1], scaled, pull, before, run.values(), scales[0])


class Twice(torch.optim.SGD):
    """Its step is two steps of an inner optimiser: one outermost step."""

    def __init__(self, params):
        params = list(params)
        super().__init__(params, 0.1)
        self.inner = torch.optim.SGD(params, 0.1)

    def step(self, closure=None):
        self.inner.step()
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p -= 0.01


def test_a_wrapper_is_one_step_and_all_its_change():
    with Watched(Twice) as run:
        before, gradient, pull = run.values(), run.gradient(), run.pull()
        run.backward()
        run.optimizer.step()
        check(run.record.steps[-1], gradient, pull, before, run.values())
    assert len(run.record.steps) == 1


def test_two_optimizers_and_a_weight_without_a_gradient():
    with Watched() as run:
        first, last = run.model[0], run.model[2]
        one, two = torch.optim.SGD(first.parameters(), 0.1), torch.optim.SGD(last.parameters(), 0.2)
        run.backward()
        last.bias.grad = None
        one.step()
        two.step()
    assert [sorted(step.change) for step in run.record.steps] == [["0.bias", "0.weight"], ["2.weight"]]


def test_nothing_counts_that_did_not_happen():
    with Watched() as run:
        run.backward()
        run.model[0].weight.grad[0, 0] = float("nan")
        run.optimizer.step()  # moves the others, but one gradient is no number: the whole step counts nothing
        assert run.record.steps == []

    class Breaks(torch.optim.SGD):
        def step(self, closure=None):
            raise ZeroDivisionError

    with Watched(lambda params: Breaks(params, 0.1)) as run:
        run.backward()
        with pytest.raises(ZeroDivisionError):
            run.optimizer.step()
        assert run.record.steps == []
        before, gradient, pull = run.values(), run.gradient(), run.pull()
        torch.optim.SGD(run.model.parameters(), 0.1).step()  # the same gradient, which holds the pull by now
        check(run.record.steps[-1], gradient, pull, before, run.values())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("pulls", [False, True])
def test_grad_scaler(fused, pulls):
    """Gradients without the scale; a step that the scaler skips counts nothing."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    with Watched(lambda params: torch.optim.SGD(params, 0.3, fused=fused)) as run:
        for bad in (False, True, False):
            before, gradient, pull, count = run.values(), run.gradient(), run.pull(), len(run.record.steps)
            run.optimizer.zero_grad()
            scaler.scale(loss_of(run.model, data(1))).backward()
            if bad:
                run.model[2].bias.grad[0] = float("inf")
            if pulls:
                scaler.unscale_(run.optimizer)
                run.task.pull()
            scaler.step(run.optimizer)
            scaler.update()
            assert len(run.record.steps) == count + (not bad)
            if not bad:
                check(run.record.steps[-1], gradient, pull, before, run.values())
            else:
                assert all(torch.equal(before[name], value) for name, value in run.values().items())


def test_a_fused_step_that_is_skipped_for_an_unguarded_weight():
    """Every guarded gradient is finite, but another one is not, so the scaler skips the step."""
    run = Watched(lambda params: torch.optim.SGD(params, 0.3, fused=True))
    run.guard.params = run.model[0]
    with run:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(loss_of(run.model, data(1))).backward()
        run.model[2].bias.grad[0] = float("inf")
        scaler.step(run.optimizer)
        assert run.record.steps == []


def test_half_precision_is_widened():
    model = net().to(torch.bfloat16)
    record = Record()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    x, y = data(1)
    guard = SI(1.0) + record
    with guard.learning(model, optimizer, (x.bfloat16(), y), nn.CrossEntropyLoss()):
        loss_of(model, (x.bfloat16(), y)).backward()
        optimizer.step()
    (step,) = record.steps
    assert {t.dtype for part in (step.gradient, step.total, step.change) for t in part.values()} == {torch.float32}
    assert guard.state_dict()["states"]["si"]["precision"]["0.weight"].dtype == torch.float32


def test_sparse_gradients_raise():
    model = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens = torch.tensor([0, 1])
    with (
        pytest.raises(TypeError, match="'weight' has a sparse gradient"),
        SI(1.0).learning(model, optimizer, (tokens, tokens), lambda m, b: m(b[0]).square().mean()),
    ):
        model(tokens).square().mean().backward()
        optimizer.step()


def test_what_nobody_asks_for_is_not_observed():
    model, guard = Line(0.0), EWC(1.0, fisher="empirical")
    with guard.learning(model, None, point(1.0), half_square) as task:
        assert task._puller.observer is None
    with pytest.raises(ValueError, match="a method can observe"):
        Record(("momentum",)).begin(Line(0.0), None, point(1.0), half_square)


@pytest.mark.parametrize("make", [SI, RWALK], ids=["si", "rwalk"])
def test_a_saved_state_is_not_changed_by_going_on(make):
    model, guard = net(), make(2.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for number in range(2):
        with guard.learning(model, optimizer, data(number), nn.CrossEntropyLoss()) as task:
            for _ in range(2):
                optimizer.zero_grad()
                loss_of(model, data(number)).backward()
                optimizer.step()
                task.bookmark()
                saved = guard.state_dict()
                kept = copy.deepcopy(saved)
        for part in ("states", "task_states"):
            assert repr(saved[part]) == repr(kept[part])


@pytest.mark.parametrize("make", [MAS, SI, RWALK], ids=["mas", "si", "rwalk"])
def test_a_head_may_grow(make):
    """New rows have precision 0 and are not pulled; what was known of the old ones stays."""
    model, guard = net(), make(2.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)

    def learn(number):
        with guard.learning(model, optimizer, data(number), nn.CrossEntropyLoss()) as task:
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(model, data(number)).backward()
                optimizer.step()
        return task

    learn(0)
    old = copy.deepcopy(state_of(guard))
    head = nn.Linear(4, 3).double()
    with torch.no_grad():
        head.weight[:2], head.bias[:2] = model[2].weight, model[2].bias
    model[2] = head
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    with guard.learning(model, optimizer, data(1), nn.CrossEntropyLoss()) as task:
        ((_, remembered),) = task._quadratics(task.terms[0])
        assert torch.equal(remembered.precision["2.weight"][:2], old["precision"]["2.weight"])
        assert remembered.precision["2.weight"][2].eq(0).all()
        assert float(task.penalty()) == 0
        steps_before = model[2].weight.detach().clone()
        optimizer.zero_grad()
        loss_of(model, data(1)).backward()
        optimizer.step()
        assert not torch.equal(steps_before, model[2].weight)
    assert state_of(guard)["precision"]["2.weight"].shape == (3, 4)
    learn(0)
    model[2] = nn.Linear(4, 2).double()
    with pytest.raises(ValueError, match="changed its shape"):
        learn(1)


@pytest.mark.parametrize("make", [MAS, SI, RWALK], ids=["mas", "si", "rwalk"])
def test_the_preflight_measures_and_changes_nothing(make, capsys):
    model, guard = net(), make(50.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(2):
        before = copy.deepcopy((model.state_dict(), guard.state_dict()))
        report = guard.check(model, optimizer, data(0), nn.CrossEntropyLoss(), seconds=1)
        assert all(row.pulls["old"] > 0 for row in report.layers)
        assert repr(before) == repr((model.state_dict(), guard.state_dict()))
        with guard.learning(model, optimizer, data(0), nn.CrossEntropyLoss()):
            loss_of(model, data(0)).backward()
            optimizer.step()
    if make is not MAS:
        report = make(50.0).check(model, None, data(0), nn.CrossEntropyLoss(), seconds=1)
        assert [verdict.judgement for verdict in report.verdicts.values()] == ["not measured"]


@pytest.mark.parametrize("make", [MAS, SI, RWALK], ids=["mas", "si", "rwalk"])
def test_what_is_no_longer_guarded_is_not_forgotten(make):
    model, guard = net(), make(2.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for number, params in enumerate((None, model[2], None)):
        guard.params = params
        known = copy.deepcopy(guard.state_dict()["states"].get(guard.method))
        with guard.learning(model, optimizer, data(number % 2), nn.CrossEntropyLoss()):
            steps_of(model, optimizer, data(number % 2))
        if params is not None:
            state = state_of(guard)
            assert torch.equal(state["precision"]["0.weight"], known["precision"]["0.weight"])
            assert not torch.equal(state["precision"]["2.weight"], known["precision"]["2.weight"])


def steps_of(model, optimizer, batch):
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def test_steps_of_one_weight_are_counted_where_it_moves_to_another_type():
    model = Line(0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    guard = SI(1.0)
    with guard.learning(model, optimizer, point(1.0), half_square) as task:
        steps(model, optimizer, point(1.0), 1)
        model.float()
        task.accept()
        optimizer.zero_grad()
        half_square(model, tuple(part.float() for part in point(1.0))).backward()
        optimizer.step()
    assert state_of(guard)["precision"]["w"].item() == pytest.approx(0.625 / (0.75**2 + 0.1), rel=1e-6)
