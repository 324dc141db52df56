"""Several groups, several optimisers, replaced, wrapped and failing ones."""

import itertools

import pytest
import torch
from torch import nn, optim

import afec
from two_tasks import Run, data, learned_one_task, loader, plain_loop, plain_loss, same_as_penalty


def two_groups(model):
    return optim.SGD(
        [
            {"params": model[0].parameters(), "lr": 0.05, "momentum": 0.9},
            {"params": model[2].parameters(), "weight_decay": 0.01},
        ],
        lr=0.1,
    )


def test_several_groups(kind):
    same_as_penalty(plain_loop, two_groups, kind)


def test_a_group_added_in_mid_task(kind):
    def loop(run):
        plain_loop(run, epochs=1)
        run.optimizer.add_param_group({"params": run.model[0].parameters(), "lr": 0.03})
        plain_loop(run, epochs=1)

    def reference(run, penalty):
        for number, batch in enumerate(run.batches * 2):
            if number == len(run.batches):
                run.optimizer.add_param_group({"params": run.model[0].parameters(), "lr": 0.03})
            run.model.zero_grad()
            (run.loss(run.model, batch) + penalty(run.model)).backward()
            run.optimizer.step()

    def zeroed(run):
        loop(Run(run.model, _ZeroesAll(run), run.loss, run.task, run.batches))

    same_as_penalty(zeroed, lambda model: optim.SGD(model[2].parameters(), 0.1), kind, reference=reference)


class _ZeroesAll:
    """zero_grad of the whole model, step of the optimiser."""

    def __init__(self, run):
        self.zero_grad, self.step = run.model.zero_grad, run.optimizer.step
        self.add_param_group = run.optimizer.add_param_group


def test_two_optimisers_on_disjoint_weights(kind):
    def make(model):
        return [optim.SGD(model[0].parameters(), 0.1), optim.Adam(model[2].parameters(), 0.02)]

    def loop(run):
        for batch in run.batches * 3:
            for one in run.optimizer:
                one.zero_grad()
            run.loss(run.model, batch).backward()
            for one in run.optimizer:
                one.step()

    same_as_penalty(loop, make, kind)


def test_two_optimisers_take_turns_with_a_backward_each(kind):
    def make(model):
        return [optim.SGD(model.parameters(), 0.1), optim.Adam(model.parameters(), 0.02)]

    def loop(run):
        for one, batch in zip(itertools.cycle(run.optimizer), run.batches * 3, strict=False):
            one.zero_grad(set_to_none=False)
            run.loss(run.model, batch).backward()
            one.step()

    same_as_penalty(loop, make, kind)


@pytest.mark.parametrize("to_none", [True, False])
def test_an_optimiser_replaced_in_mid_task(to_none, kind):
    def loop(run):
        optimizer = run.optimizer
        for lr in (0.02, 0.01, 0.005):
            for batch in run.batches:
                optimizer.zero_grad(set_to_none=to_none)
                run.loss(run.model, batch).backward()
                optimizer.step()
            optimizer = optim.Adam(run.model.parameters(), lr)

    same_as_penalty(loop, kind=kind)


def test_two_optimisers_on_one_gradient_raise_and_leave_the_weights():
    model, guard = learned_one_task("ewc")
    one, other = optim.SGD(model.parameters(), 0.1), optim.SGD(model.parameters(), 0.1)
    second = data(2)
    with (
        pytest.raises(afec.GradientUsedTwiceError, match="same gradient"),
        guard.learning(model, [one, other], second, nn.CrossEntropyLoss()),
    ):
        plain_loop(Run(model, one, plain_loss, batches=list(loader(second))), epochs=1)
        other.step()
    assert guard.tasks_done == 1
    assert not guard.in_task


# -- wrappers -------------------------------------------------------------------------------------------------------


class Delegating(optim.Optimizer):
    """An Optimizer around another one, sharing its groups: both fire the hooks."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.optimizer, self.param_groups = inner, inner.param_groups

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        return self.optimizer.step(closure) if closure is not None else self.optimizer.step()


class CallsSuper(optim.AdamW):
    def step(self, closure=None):
        return super().step(closure)


class CallsSuperTwice(CallsSuper):
    def step(self, closure=None):
        super().step(closure)
        return super().step(closure)


class Lookahead(optim.Optimizer):
    """k fast steps, then the slow weights come halfway and the fast ones go back to them."""

    def __init__(self, inner, k=2):
        super().__init__(inner.param_groups, {})
        self.optimizer, self.param_groups, self.k, self.count = inner, inner.param_groups, k, 0

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for weight in weights:
            self.state[weight].setdefault("slow", weight.detach().clone())
        loss = self.optimizer.step(closure)
        self.count += 1
        if self.count % self.k == 0:
            for weight in weights:
                slow = self.state[weight]["slow"]
                slow.lerp_(weight, 0.5)
                weight.copy_(slow)
        return loss


WRAPPERS = {
    "delegating": lambda model: Delegating(optim.Adam(model.parameters(), 0.02)),
    "delegating-twice": lambda model: Delegating(Delegating(optim.SGD(model.parameters(), 0.1))),
    "super": lambda model: CallsSuper(model.parameters(), 0.02),
    "super-twice": lambda model: CallsSuperTwice(model.parameters(), 0.02),
    "lookahead": lambda model: Lookahead(optim.SGD(model.parameters(), 0.1, momentum=0.5)),
}


def closures(run):
    for batch in run.batches * 2:

        def closure(batch=batch):
            run.optimizer.zero_grad()
            loss = run.loss(run.model, batch)
            loss.backward()
            return loss

        run.optimizer.step(closure)


@pytest.mark.parametrize("loop", [plain_loop, closures])
@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_pull_once(name, loop, kind):
    same_as_penalty(loop, WRAPPERS[name], kind)


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, lambda *args: optim.Adam(*args, fused=True)])
def test_one_optimiser_on_one_gradient_twice_raises(make):
    """By its version it cannot be told from a gradient written through `.data`, whose pull would be lost."""
    model, guard = learned_one_task("ewc")
    optimizer = make(model.parameters(), 0.1)
    second = data(2)
    with (
        pytest.raises(afec.GradientUsedTwiceError, match=r"stepped twice by .*\.data"),
        guard.learning(model, optimizer, second, nn.CrossEntropyLoss()),
    ):
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(second))), epochs=1)
        optimizer.step()


@pytest.mark.parametrize("name", WRAPPERS)
def test_step_twice_through_a_wrapper_raises(name):
    model, guard = learned_one_task("ewc")
    optimizer = WRAPPERS[name](model)
    with (
        pytest.raises(afec.GradientUsedTwiceError, match="same gradient"),
        guard.learning(model, optimizer, data(2), nn.CrossEntropyLoss()),
    ):
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(2)))), epochs=2)
        optimizer.step()


def test_accelerate(kind):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)

    def loop(run):
        for batch in run.batches * 2:
            run.optimizer.zero_grad()
            accelerator.backward(run.loss(run.model, batch))
            if run.task is not None:
                run.task.pull()
            accelerator.clip_grad_norm_(run.model.parameters(), 0.3)
            run.optimizer.step()

    def make(model):
        return accelerator.prepare_optimizer(optim.AdamW(model.parameters(), 0.02))

    same_as_penalty(loop, make, kind)
    same_as_penalty(plain_loop, make, kind)


# -- steps that fail ------------------------------------------------------------------------------------------------


class FailsOnce(optim.SGD):
    """Raises in its first steps, before or after it has moved anything."""

    fails = ()

    def step(self, closure=None):
        number = self.count = getattr(self, "count", -1) + 1
        if number in self.fails:
            raise ConnectionError("try again")
        return super().step(closure)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
def test_after_a_step_that_raised_the_pull_is_still_added(fresh, to_none, kind):
    """`fresh`: with a new gradient afterwards; else the step is tried again with the same one."""

    def make(model):
        optimizer = FailsOnce(model.parameters(), 0.1)
        optimizer.fails = (1, 3)
        return optimizer

    def loop(run):
        for batch in run.batches * 2:
            run.optimizer.zero_grad(set_to_none=to_none)
            run.loss(run.model, batch).backward()
            try:
                run.optimizer.step()
            except ConnectionError:
                if not fresh:
                    run.optimizer.step()

    same_as_penalty(loop, make, kind)


def test_a_closure_that_raised(kind):
    def loop(run):
        for number, batch in enumerate(run.batches * 2):

            def closure(number=number, batch=batch):
                run.optimizer.zero_grad()
                loss = run.loss(run.model, batch)
                loss.backward()
                if number == 1:
                    raise ConnectionError
                return loss

            try:
                run.optimizer.step(closure)
            except ConnectionError:
                run.optimizer.step()  # with the gradients that are there

    same_as_penalty(loop, kind=kind)
