"""Closure loops: the pull comes after the closure's backward, and a line search sees the penalty in the loss."""

import pytest
import torch
from torch import optim

from two_tasks import same_as_penalty


def closure_loop(how, epochs=3, seen=None):
    def loop(run):
        for batch in run.batches * epochs:

            def closure(batch=batch):
                run.optimizer.zero_grad()
                loss = run.loss(run.model, batch)
                loss.backward()
                return loss

            returned = run.optimizer.step(closure) if how == "positional" else run.optimizer.step(closure=closure)
            if seen is not None and run.task is not None:
                seen.append(returned.item())

    return loop


def lbfgs(**options):
    return lambda model: optim.LBFGS(model.parameters(), lr=0.3, max_iter=6, **options)


@pytest.mark.parametrize("how", ["positional", "keyword"])
@pytest.mark.parametrize("optimizer", [optim.SGD, optim.Adam])
def test_closure(how, optimizer, kind):
    same_as_penalty(closure_loop(how), lambda model: optimizer(model.parameters(), 0.02), kind)


@pytest.mark.parametrize("how", ["positional", "keyword"])
@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_minimises_loss_plus_penalty(how, line_search, kind):
    same_as_penalty(closure_loop(how, epochs=1), lbfgs(line_search_fn=line_search), kind, tol=1e-8)


def test_lbfgs_whose_closure_returns_a_number(kind):
    def loop(run):
        def closure():
            run.optimizer.zero_grad()
            loss = run.loss(run.model, run.batches[0])
            loss.backward()
            return loss.item()

        run.optimizer.step(closure)

    same_as_penalty(loop, lbfgs(line_search_fn="strong_wolfe"), kind, tol=1e-8)


def test_sgd_returns_the_loss_of_the_closure_itself():
    seen = []
    loop = closure_loop("positional", epochs=1, seen=seen)
    first = []

    def watched(run):
        if run.task is not None:
            first.append(run.loss(run.model, run.batches[0]).item())
        loop(run)

    same_as_penalty(watched)
    assert seen[0] == first[0]


def test_pull_by_hand_inside_the_closure_and_clipping(kind):
    def loop(run):
        for batch in run.batches * 2:

            def closure(batch=batch):
                run.optimizer.zero_grad()
                loss = run.loss(run.model, batch)
                loss.backward()
                run.pull()
                torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.3)
                return loss

            run.optimizer.step(closure)

    same_as_penalty(loop, kind=kind)


def test_closure_that_accumulates_and_never_zeroes(kind):
    def loop(run):
        def closure():
            losses = [run.loss(run.model, batch) / len(run.batches) for batch in run.batches]
            for loss in losses:
                loss.backward()
            return sum(losses)

        for _ in range(4):
            run.optimizer.zero_grad()
            run.optimizer.step(closure)

    same_as_penalty(loop, kind=kind)


class Rewrapping(optim.Optimizer):
    """Hands a closure of its own to the inner optimiser, as profilers and precision plugins do."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.optimizer = inner

    def step(self, closure=None):
        return self.optimizer.step(lambda: closure())

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


@pytest.mark.parametrize("how", ["positional", "keyword"])
def test_lbfgs_in_a_wrapper_that_wraps_the_closure_again_counts_the_penalty_once(how, kind):
    make = lbfgs(line_search_fn="strong_wolfe")
    same_as_penalty(closure_loop(how, epochs=1), lambda model: Rewrapping(make(model)), kind, tol=1e-8)


class SAM(optim.Optimizer):
    """Sharpness-aware minimisation: the closure is called again at perturbed weights, inside one step."""

    def __init__(self, params, lr, rho=0.05):
        super().__init__(params, {"lr": lr, "rho": rho})

    def step(self, closure):
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            weights = [p for group in self.param_groups for p in group["params"]]
            norm = torch.stack([p.grad.norm() for p in weights]).norm()
            shifts = [p.grad * (group["rho"] / norm) for group in self.param_groups for p in group["params"]]
            for weight, shift in zip(weights, shifts, strict=True):
                weight.add_(shift)
            with torch.enable_grad():
                closure()
            for weight, shift in zip(weights, shifts, strict=True):
                weight.sub_(shift).sub_(weight.grad, alpha=self.param_groups[0]["lr"])


def test_sharpness_aware_minimisation_with_a_closure(kind):
    same_as_penalty(closure_loop("positional"), lambda model: SAM(model.parameters(), 0.05), kind)
