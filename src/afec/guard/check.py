"""A preflight of a few seconds: the guard in the user's own setting, on borrowed weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from afec.fisher.batches import Samples
from afec.fisher.checks import check_mean
from afec.fisher.untouched import untouched
from afec.gaussian import Gaussian, Quadratic, merge
from afec.guard.borrow import borrowed
from afec.guard.expansion import training_step
from afec.guard.forecast import MemoryForecast, forecast
from afec.guard.task import GuardedTask
from afec.guard.trial import walk, watched
from afec.guard.verdict import Verdict, judge, percent
from afec.randomness import forked

__all__ = ["CheckReport", "Layer", "check"]

PREVIEW_BATCHES = 4


@dataclass(frozen=True)
class Layer:
    """The norms at one guarded weight, after some steps of the task."""

    name: str
    gradient: float
    pulls: dict[str, float]  # "old", "forgetting"
    stiffness: float  # lr·max(D)


@dataclass
class CheckReport:
    """What a preflight found."""

    method: str
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # by the name of the term
    layers: list[Layer] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    memory: MemoryForecast | None = None
    warnings: list[str] = field(default_factory=list)

    def norm(self, pull: str | None = None) -> float:
        """The norm over all layers, of the task's gradient or of one pull."""
        return math.hypot(*(row.gradient if pull is None else row.pulls.get(pull, 0.0) for row in self.layers))

    def __str__(self) -> str:
        pulls = sorted({pull for row in self.layers for pull in row.pulls}, reverse=True)
        width = max([len(row.name) for row in self.layers] + [10])
        lines = [f"check of {self.method}", *(f"  ok: {fact}" for fact in self.facts)]
        lines += [f"  {self.memory}"] if self.memory is not None else []
        lines += [f"  {name}: {verdict}" for name, verdict in self.verdicts.items()]
        if self.layers:
            heads = ["gradient", *(f"{pull} pull" for pull in pulls), "lr·max(D)"]
            lines.append(f"  {'weight':{width}}" + "".join(f"{head:>18}" for head in heads))
            for row in self.layers:
                numbers = [row.gradient, *(row.pulls.get(pull, 0.0) for pull in pulls), row.stiffness]
                lines.append(f"  {row.name:{width}}" + "".join(f"{number:>18.3g}" for number in numbers))
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def check(task: GuardedTask, method: str, seconds: float) -> CheckReport:
    """See `Guard.check`; the task is not begun."""
    if task.processes.sharded:
        raise TypeError(
            "guard.check() does not work on a sharded model (FSDP2): call it on one that fully_shard has not split"
        )
    task.number = max(task.number, 1)  # the first task has no pull: show what the second one will have
    report = CheckReport(method, memory=forecast(task))
    _check_data(task, report)
    with torch.enable_grad(), borrowed(task.model, task.optimizers):
        if not task.model.training:
            task.model.train()
        _check_pull_arrives(task, report)
    _measure(task, report, seconds)
    print(report)
    return report


def _check_data(task: GuardedTask, report: CheckReport) -> None:
    """The data can be passed over twice, the loss reaches the weights and is the mean of its samples' losses."""
    for _ in range(1 if task.passes.on_demand else 2):
        with forked(task.seed("check"), task.device):
            first = next(iter(task.batches("check")))
    report.facts.append("the data can be passed over again, and the loss reaches the guarded weights")
    if task.problem.split is not None:
        return
    try:
        with untouched(task.model, task.weights.values(), train=False, seed=task.seed("check")), torch.no_grad():
            check_mean(task.problem, Samples.all_of(first).take(0, 16))
    except ValueError as error:
        report.warnings.append(str(error))
    else:
        report.facts.append("the loss is the mean of its samples' losses")


def _check_pull_arrives(task: GuardedTask, report: CheckReport) -> None:
    """One step with a known pull: is it in the gradients that the optimiser has used?"""
    if not task.optimizers:
        report.warnings.append(
            "no optimiser was given, so no pull could be measured. Give check() one like your trainer's, such as "
            "torch.optim.AdamW(model.parameters(), 1e-4): its steps are undone"
        )
        return
    center = {name: value - 1 for name, value in task.values().items()}  # D = 1, so the pull is 1 everywhere
    known = Quadratic(center, {name: torch.ones_like(value) for name, value in center.items()}, {}, torch.zeros(()))
    before: dict[str, Tensor] = {}
    puller = watched(task, known)
    handles = [
        weight.register_post_accumulate_grad_hook(_remember(name, before))  # type: ignore[no-untyped-call]
        for name, weight in task.weights.items()
    ]
    try:
        with forked(task.seed("check"), task.device):
            training_step(task, task.optimizers, next(iter(task.batches("check", training=True))))
        puller.verify()
    finally:
        puller.detach()
        for handle in handles:
            handle.remove()
    arrived = [name for name, grad in before.items() if _moved_by_one(task.weights[name].grad, grad)]
    missing = sorted(before.keys() - set(arrived))
    if missing:
        report.warnings.append(f"the pull did not arrive at {len(missing)} weight(s), {missing[0]!r} first")
    report.facts.append(f"the pull arrives at {len(arrived)} of {len(task.weights)} guarded weights")


def _measure(task: GuardedTask, report: CheckReport, seconds: float) -> None:
    """Preview each term's pull, judge it, and take the norms at the end of some steps under all of them."""
    terms: dict[str, list[tuple[float, Gaussian]]] = {}
    untold = "how it is trained is known in a task only" if task.optimizers else "no optimiser was given"
    loaded = {name for state in task.memory.states.values() for name in state.get("kept", ())}
    for term in task.terms:
        own = borrowed(task.model, task.optimizers, written=loaded)
        with task.only(term), task.briefly(PREVIEW_BATCHES), own:
            lacking = term.lacks(task)
            previewed = None if lacking else term.preview(task, task.state_of(term), seconds / 3)
        if lacking and lacking not in report.warnings:
            report.warnings.append(lacking)
        if previewed is None or not task.optimizers:
            report.verdicts[term.name] = Verdict("not measured", why="see the warning" if lacking else untold)
        else:
            terms[term.name] = previewed
    if not terms:
        return
    found, steps = judge(task, terms, seconds / 3)
    every = report.verdicts | found
    report.verdicts = {term.name: every[term.name] for term in task.terms}
    _take_norms(task, terms, steps, report)
    names = ", ".join(sorted({type(optimizer).__name__ for optimizer in task.optimizers}))
    first = "" if task.memory.tasks_done else " (as if the old task's)"
    report.facts.append(f"measured in {steps} steps of {names} from the present weights{first}, which were put back")
    for name, verdict in found.items():
        _advise(name, verdict, f"in {steps} steps of {names}", report)


def _take_norms(
    task: GuardedTask, terms: dict[str, list[tuple[float, Gaussian]]], steps: int, report: CheckReport
) -> None:
    everything = merge([one for own in terms.values() for one in own])
    pulls: dict[str, list[tuple[float, Gaussian]]] = {}
    for term in task.terms:
        pulls.setdefault(term.pull_name, []).extend(terms.get(term.name, []))
    with torch.enable_grad(), borrowed(task.model, task.optimizers):
        if not task.model.training:
            task.model.train()
        walk(task, everything, most=steps)
        with forked(task.seed("check"), task.device):
            loss = task.problem.loss(task.model, next(iter(task.batches("check"))))
            grads = torch.autograd.grad(loss, list(task.weights.values()), allow_unused=True)
        weights = {name: weight.detach() for name, weight in task.weights.items()}
        found = {pull: merge(own).pull(weights) for pull, own in pulls.items() if own}
    rates = {id(p): float(g.get("lr", 0)) for o in task.optimizers for g in o.param_groups for p in g["params"]}
    for (name, weight), grad in zip(task.weights.items(), grads, strict=True):
        curvature = everything.curvature.get(name)
        stiffness = 0.0 if curvature is None else rates.get(id(weight), 0.0) * float(curvature.max())
        norms = {pull: float(values[name].norm()) for pull, values in found.items() if name in values}
        report.layers.append(Layer(name, 0.0 if grad is None else float(grad.norm()), norms, stiffness))
    stiffest = max(row.stiffness for row in report.layers)
    if stiffest > 2 and any(isinstance(optimizer, SGD) for optimizer in task.optimizers):
        report.warnings.append(
            f"lr·max(D) = {stiffest:.3g} > 2: plain SGD will diverge. Lower the strength or the learning rate, or use Adam"
        )


def _advise(name: str, verdict: Verdict, where: str, report: CheckReport) -> None:
    if verdict.judgement == "inert":
        moved = f"it changes how the weights move by {percent(verdict.change)}"
        report.warnings.append(f"{name} is inert: {where} {moved}. Raise its strength")
    elif verdict.judgement == "too strong":
        leaves = f"it leaves {percent(verdict.left)} of what the task's gradient does, so the task is not learned"
        report.warnings.append(f"{name} is too strong: {where} {verdict.why or leaves}. Lower its strength")
    elif verdict.judgement == "not measured":
        report.warnings.append(f"{name} was not measured: {verdict.why}")


def _remember(name: str, into: dict[str, Tensor]) -> Any:
    def remember(weight: Tensor) -> None:
        assert weight.grad is not None
        into[name] = weight.grad.detach().clone()

    return remember


def _moved_by_one(grad: Tensor | None, before: Tensor) -> bool:
    return grad is not None and torch.allclose(grad - before, torch.ones_like(before), rtol=1e-2, atol=1e-2)
