"""AFEC, active forgetting with synaptic expansion-convergence (the paper, Sec. 3.2 and App. B).

    L(θ) = L_new(θ) + [what the other terms add] + λ_e/2 · Σ_i F_{e,i} (θ_i − θ*_{e,i})²

Expansion: θ_e is learned from the new task alone, free of the past, and F_e is its Fisher information. Convergence: while θ is
learned it is pulled to θ_e* as well, each weight by F_e. `forgetting` is λ_e, or `beta` the forgetting factor β of the weighted
product p(θ|D_old)^(1−β)·p(θ)^β, with λ_e = β/(1−β). The ½ is not part of either. The paper's "AFEC" is `EWC(…) + AFEC(…)`.

    guard = afec.EWC(strength=100) + afec.AFEC(forgetting=10, epochs=20)

There is no expansion in the first task: there is nothing to forget. The paper's Algorithm 1 expands there too,
but has no penalty that would use it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor

from afec.gaussian import Derived, Gaussian, Quadratic, forgetting_from_beta, grown
from afec.guard import (
    NO_OPTIMIZER,
    FisherFields,
    GuardedTask,
    OptimizerFactory,
    State,
    TermBytes,
    bytes_of,
    checked_weight,
    learns_something,
    load,
    optimizer_bytes,
    optimizers_for_theta_e,
    option,
    precision_bytes,
    snapshot,
    train_theta_e,
    trained,
)
from afec.methods.regulariser import OptionTerm

__all__ = ["AFEC"]


@final
class AFEC(FisherFields, OptionTerm):
    """Pull each weight to where the new task alone would have it, by how much it matters to the new task."""

    name = "afec"
    rank = 1
    pull_name = "forgetting"

    forgetting: float | Sequence[float] | None = option(
        default=None,
        kw_only=False,
        symbol="λ_e",
        doc="λ_e ≥ 0, or one for each task (the first is never used). Zero switches the method off.",
    )
    beta: float | Sequence[float] | None = option(
        default=None, symbol="β", doc="β in [0, 1) instead of `forgetting`, or one for each task: λ_e = β/(1−β)."
    )
    epochs: int | None = option(
        default=None, at_least=1, doc="How long θ_e is trained, in passes over the task's data."
    )
    expand: Callable[[], object] | None = option(
        default=None,
        from_config=False,
        doc="Your own training function instead of `epochs`, `lambda: trainer.fit(model)`: it trains the model in place. With "
        "neither, `learning()` must be given `train=`, such a function for its task.",
    )
    optimizer: OptimizerFactory | None = option(
        default=None,
        from_config=False,
        doc="θ_e's optimiser, `lambda params: Adam(params, 1e-3)`; by default the task's own, built anew.",
    )
    expand_from: Literal["init", "main", "carry"] = option(
        default="init",
        official="carry",
        doc="Where θ_e starts: `init` (the weights and buffers the guard first saw), `main` (the present ones), `carry` (the "
        "θ_e of the task before).",
    )
    schedule: Literal["sequential", "interleaved"] = option(
        default="sequential",
        official="interleaved",
        doc="`sequential` (θ_e to the end, F_e once, then θ: the paper's Algorithm 1) or `interleaved` (one epoch of θ_e and a "
        "new F_e at each `task.epoch()`: the released code).",
    )
    start: Literal["merged"] | None = option(
        default=None,
        doc="`merged`: θ starts at the mode of the product of all Gaussians that pull, (λF·θ* + λ_eF_e·θ_e) / (λF + λ_eF_e), "
        "and not where the old tasks left it.",
    )
    fisher_form: Literal["flat"] | None = option(
        default=None,
        doc="`flat`: every weight has the mean of F_e over all weights, so all are pulled to θ_e alike. A control: what "
        "is gained by it needs θ_e, and not its Fisher.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lambda_e = _weights(self.forgetting, self.beta)
        self._check_how()

    @property
    def exempt_contracts(self) -> dict[str, str]:
        """What `afec.testing` does not ask of it, and why."""
        return {"untouched": "it moves θ to its start when a task begins"} if self.start == "merged" else {}

    @property
    def is_off(self) -> bool:
        """Whether λ_e = 0 in every task."""
        return not any(self.lambda_e) if isinstance(self.lambda_e, list) else self.lambda_e == 0

    def weight_in(self, task: int) -> float:
        """λ_e in the task with this number (from 0); zero in the first one, where nothing is old."""
        if task == 0:
            return 0.0
        if not isinstance(self.lambda_e, list):
            return self.lambda_e
        if task >= len(self.lambda_e):
            raise ValueError(
                f"AFEC has forgetting factors for {len(self.lambda_e)} tasks and this is task {task + 1}; "
                "give one for each task, or a single number"
            )
        return self.lambda_e[task]

    def _check_how(self) -> None:
        if self.expand is not None and not callable(self.expand):
            raise TypeError(
                f"AFEC: expand must be a function without arguments that trains the model; got {self.expand!r}"
            )
        if self.epochs is not None and self.expand is not None:
            raise ValueError("AFEC: give either epochs= or expand=, not both: expand= trains θ_e itself")
        if self.schedule == "interleaved" and self.epochs is not None:
            raise ValueError(
                'AFEC: schedule="interleaved" trains θ_e one epoch at each task.epoch(); leave epochs= out'
            )
        if self.schedule == "interleaved" and self.start == "merged":
            raise ValueError(
                'AFEC: start="merged" needs θ_e before θ is trained, and schedule="interleaved" trains both side by side; '
                "leave one of them out"
            )

    # -- the functions of a term ----------------------------------------------------------------------------------

    def not_on_shards(self) -> str | None:
        """The mean of a flat F_e, which is over all weights."""
        return (
            None
            if self.fisher_form is None
            else f'AFEC with fisher_form="{self.fisher_form}" does not work on the parts'
        )

    def lacks(self, task: GuardedTask) -> str | None:
        """How θ_e is to be trained, if nobody said so, and by which optimiser; or a likelihood, for a Fisher that needs one."""
        untold = self.epochs is None and self.expand is None and task.train is None
        if self.schedule == "sequential" and untold:
            return (
                "AFEC needs to know how long to train θ_e: epochs=20, or expand=a function that trains the model, or "
                "learning(…, train=such a function)"
            )
        # Under the interleaved schedule task.epoch() may still be given one.
        if self.epochs is not None and self.optimizer is None and not task.optimizers:
            return NO_OPTIMIZER
        return task.refuses(self.fisher_options)

    def begin_task(self, task: GuardedTask, state: State) -> State:
        """Expansion, unless it comes epoch by epoch."""
        kept = self._kept_at_entry(task, state)
        if self.weight_in(task.number) == 0:
            return {"kept": kept}
        if self.schedule == "interleaved":
            return {
                "kept": kept,
                "theta_e": self._start(task, kept),
                "epochs": 0,
                "optimizers": None,
                "lrs": None,
            }
        with task.borrowing(kept):
            load(task.model, kept)
            with learns_something(task, kept):
                self._learn(task)
            if any(term.asks_alone for term in task.terms):
                task.alone = task.now_alone()
            posterior = self._posterior(task, "sequential")
            carries = self.expand_from == "carry"
            return {"kept": self._theta_e(task, posterior) if carries else kept, **posterior}

    def first_weights(self, task: GuardedTask, task_state: State, total: Quadratic | Derived) -> dict[str, Tensor]:
        """The merged weights, where θ is to start from them."""
        if self.start != "merged" or "mean" not in task_state:
            return {}
        return total.mode(task.present())

    def begin_epoch(self, task: GuardedTask, state: State, task_state: State) -> State:
        """One epoch of θ_e and a new F_e, under the interleaved schedule."""
        if "theta_e" not in task_state:
            return task_state
        with task.borrowing(task_state["theta_e"]):
            load(task.model, task_state["theta_e"])
            new = {"epochs": task_state["epochs"] + 1, **self._learn_one_epoch(task, task_state)}
            posterior = self._posterior(task, "interleaved", task_state["epochs"])
            theta_e = self._theta_e(task, posterior)
            kept = theta_e if self.expand_from == "carry" else task_state["kept"]
            return {"kept": kept, "theta_e": theta_e, **new, **posterior}

    def acts_later(self, task_state: State) -> bool:
        """Under the interleaved schedule, from the second task on."""
        return "theta_e" in task_state

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """The posterior of the new task alone, times λ_e."""
        if "mean" not in task_state:
            return []
        return [(self.weight_in(task.number), Gaussian(task_state["mean"], task_state["precision"]))]

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]] | None:
        """A θ_e of a few seconds, from where it would start."""
        own = self.expand is not None or (self.schedule == "sequential" and self.epochs is None)
        if own or not (self.optimizer or task.optimizers):
            return None
        load(task.model, self._kept_at_entry(task, state))
        optimizers = optimizers_for_theta_e(task, self.optimizer, from_initial_lr=True)
        train_theta_e(task, optimizers, range(self.epochs or 1), until=time.monotonic() + seconds)
        fisher = self._fisher(task, "afec")
        return [(self.weight_in(task.number), Gaussian(task.values(), fisher))]

    def memory(self, task: GuardedTask) -> TermBytes:
        """θ_e and F_e; and what the next θ_e starts from, where that is not the present weights."""
        every, weights = bytes_of(one for _, one in trained(task.model)), task.weights.values()
        if self.weight_in(max(task.number, 1)) == 0:
            return TermBytes({} if self.expand_from == "main" else {"start": every})
        own = {"θ_e": bytes_of(weights), "F_e": precision_bytes(weights, self.store)}
        if self.schedule == "interleaved":
            own["the rest of θ_e"] = max(0, every - own["θ_e"])
            if self.expand is None:
                own["the optimiser of θ_e"] = optimizer_bytes(task, self.optimizer)
        kept = {} if self.expand_from == "main" else {"start": every}
        return TermBytes(kept, own, pulls=True, measures=True, expands=True)

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """θ_e and F_e are not kept; only what the next expansion starts from."""
        if "theta_e" in task_state and task_state["epochs"] == 0 and task.steps > 0:
            raise RuntimeError(
                'AFEC(schedule="interleaved") learns θ_e in task.epoch(), which was never called: call it at the start of '
                'every epoch (`with guard.learning(…) as task: … task.epoch()`), or use schedule="sequential"'
            )
        return {"kept": task_state["kept"]}

    # -- where θ_e starts, and how it is learned ------------------------------------------------------------------

    def _kept_at_entry(self, task: GuardedTask, state: State) -> dict[str, Tensor]:
        """What is stored beyond EWC: nothing under `main`, else one set of weights and buffers."""
        if self.expand_from == "main":
            return {}
        kept = dict(state.get("kept", {}))
        names = {name for name, value in trained(task.model) if name not in kept or value.shape != kept[name].shape}
        for name, now in self.at_rest(kept=snapshot(task.model, names))["kept"].items():
            if name not in kept:
                kept[name] = now
            elif now.shape != kept[name].shape:  # rows born later start from their value at this entry
                kept[name] = grown(name, kept[name].to(now), now)
        return kept

    def _start(self, task: GuardedTask, kept: dict[str, Tensor]) -> dict[str, Tensor]:
        return snapshot(task.model) if self.expand_from == "main" else kept

    def _theta_e(self, task: GuardedTask, posterior: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
        """All of θ_e, buffers and unguarded weights too, to go on from; of what its posterior has there is no second copy."""
        mean = posterior["mean"]
        rest = snapshot(task.model, {name for name, _ in trained(task.model) if name not in mean})
        return self.at_rest(kept=mean | rest)["kept"]

    def _learn(self, task: GuardedTask) -> None:
        if self.epochs is None:
            train = self.expand or task.train
            assert train is not None, "lacks() has seen to it"
            task.run(train, "expand")
            return
        optimizers = optimizers_for_theta_e(task, self.optimizer, from_initial_lr=True)
        epochs = range(self.epochs)
        task.processes.once(task.model, lambda: train_theta_e(task, optimizers, epochs))

    def _learn_one_epoch(self, task: GuardedTask, task_state: State) -> dict[str, Any]:
        """The learning rate follows the main optimiser's, and a new rate starts a new optimiser, as in the released code."""
        epoch = task_state["epochs"]
        if self.expand is not None:
            task.run(self.expand, "expand", epoch)
            return {"optimizers": None, "lrs": None}
        optimizers = optimizers_for_theta_e(task, self.optimizer, from_initial_lr=False)
        lrs = [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups if "lr" in group]
        if task_state["optimizers"] is not None and lrs == task_state["lrs"]:
            for optimizer, saved in zip(optimizers, task_state["optimizers"], strict=True):
                optimizer.load_state_dict(copy.deepcopy(saved))
        task.processes.once(task.model, lambda: train_theta_e(task, optimizers, range(epoch, epoch + 1)))
        return {"optimizers": [copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers], "lrs": lrs}

    def _posterior(self, task: GuardedTask, *purpose: object) -> dict[str, dict[str, Tensor]]:
        precision = self._fisher(
            task, "afec", *purpose
        )  # before the copy of the weights: the pass is the peak of the memory
        return self.at_rest(mean=task.values(), precision=precision)

    def _fisher(self, task: GuardedTask, *purpose: object) -> dict[str, Tensor]:
        """F_e at the present weights."""
        found = task.fisher(self.fisher_options, *purpose)
        if self.fisher_form is None:
            return found
        mean = sum(float(one.double().sum()) for one in found.values()) / sum(one.numel() for one in found.values())
        return {name: torch.full_like(one, mean) for name, one in found.items()}


def _weights(forgetting: float | Sequence[float] | None, beta: float | Sequence[float] | None) -> float | list[float]:
    if (forgetting is None) == (beta is None):
        raise ValueError(
            f"AFEC needs either forgetting (λ_e) or beta (β); got forgetting={forgetting!r}, beta={beta!r}"
        )
    if isinstance(forgetting, str) or isinstance(beta, str):
        raise ValueError(
            f"AFEC: forgetting (λ_e) and beta (β) are numbers, or lists of them; got {forgetting or beta!r}"
        )
    if beta is not None:
        if isinstance(beta, Sequence):
            return [forgetting_from_beta(checked_weight("AFEC: beta (β)", one)) for one in beta]
        return forgetting_from_beta(checked_weight("AFEC: beta (β)", beta))
    if isinstance(forgetting, Sequence):
        return [checked_weight("AFEC: forgetting (λ_e)", one) for one in forgetting]
    return checked_weight("AFEC: forgetting (λ_e)", forgetting)
