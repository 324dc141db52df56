"""EWC, elastic weight consolidation (Kirkpatrick et al. 2017), as the AFEC paper uses it (Sec. 3.1, App. B.1).

    L(θ) = L_new(θ) + λ/2 · Σ_i F_{1:t−1,i} (θ_i − θ*_i)²

θ* are the weights at the end of the latest task (one anchor), F_{1:t} = ((t−1)·F_{1:t−1} + F_t)/t the running average of the
tasks' Fisher information; with a `decay` γ it is the online F ← γ·F + F_t instead. `strength` is λ; the ½ is not part of it.
Which λ is right depends on the Fisher kind: `batched` with B samples is smaller than `empirical`, by a factor of up to
about B, so its λ are larger (docs/fisher.md has measured factors).

    guard = afec.EWC(strength=100)
    with guard.learning(model, optimizer, loader, loss_fn):
        train(model, optimizer, loader)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, final

from torch import Tensor, nn

from afec.gaussian import Gaussian
from afec.guard import FisherFields, GuardedTask, State, option
from afec.guard.low_rank import LowRankPull, low_rank_weights, plain_name
from afec.methods.delta import adapted, consolidated, fisher_of_change, pulls, state_now
from afec.methods.regulariser import Regulariser
from afec.posterior import Posterior

__all__ = ["EWC"]

NO_ADAPTER = (
    'EWC(on="delta") holds the change ΔW = B·A that a LoRA adapter makes, and no guarded weight of this model is of one. Make '
    'it with peft.get_peft_model(model, LoraConfig(…)), or use on="weights"'
)


@final
class EWC(FisherFields, Regulariser):
    """Pull each weight to where the old tasks left it, by how much it mattered to them."""

    name = "ewc"

    decay: float | Literal["mean"] = option(
        default="mean",
        symbol="γ",
        at_least=0,
        at_most=1,
        doc="γ in [0, 1] of the online Fisher, F ← γ·F + F_t, or `mean`, the running average over the tasks.",
    )
    on: Literal["weights", "delta"] = option(
        default="weights",
        doc="What is held: the `weights`, of LoRA A and B apart; or LoRA's `delta`, the change ΔW = B·A of each matrix.",
    )
    anchor: Literal["last", "base"] = option(
        default="last",
        doc="Where to: the weights that the `last` task left; or the `base` model, as it is on entry to the first block, by "
        "its Fisher on the data of that block. Later tasks change neither.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.asks_alone and (self.on, self.anchor) != ("weights", "last"):
            raise ValueError(
                f'EWC(strength="auto") goes with on="weights" and anchor="last"; got on={self.on!r}, anchor={self.anchor!r}. '
                "Give a number"
            )

    @property
    def over_tasks(self) -> float | Literal["mean"]:
        """The running average of the paper, or γ."""
        return self.decay

    def cannot_measure(self, task: GuardedTask) -> str | None:
        """An adapter, where its change is held; a likelihood, for a Fisher that needs one."""
        if self.on == "weights":
            return task.refuses(self.fisher_options)
        weights = adapted(task)
        if not weights:
            return NO_ADAPTER
        with task.measuring({weight.name: weight.base for weight in weights}):
            return task.refuses(self.fisher_options)

    def importance(self, task: GuardedTask, task_state: State) -> dict[str, Tensor]:
        """The Fisher information of the task."""
        if self.on == "delta":
            return fisher_of_change(task, self.fisher_options)
        return task.fisher(self.fisher_options, "ewc")

    def watched(self, task: GuardedTask, state: State) -> State:
        """The posterior of the base model, where that is held and not known yet."""
        if self.anchor == "last" or state:
            return {}
        precision = self.importance(task, {})
        if self.on == "delta":
            return {"base": state_now(task, precision, {})}
        return {"base": {"mean": task.values(), "precision": precision}}

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """As of every regulariser; nothing where it is the change of a matrix that is held."""
        return [] if self.on == "delta" else super().quadratics(task, state or task_state.get("base", {}), task_state)

    def low_rank(self, task: GuardedTask, state: State, task_state: State) -> list[LowRankPull]:
        """The pull on the change of each matrix."""
        known = state or task_state.get("base", {})
        if self.on == "weights" or not known:
            return []
        assert not isinstance(self.strength, str), "__post_init__ has seen to it"
        return pulls(task, known, self.strength, to_base=self.anchor == "base")

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]] | None:
        """As of every regulariser; it cannot tell of the change of a matrix."""
        return None if self.on == "delta" else super().preview(task, state, seconds)

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """F with this task's around the weights as they are now; or the base model's, as it was."""
        known = state or task_state.get("base", {})
        if self.anchor == "base":
            return state_now(task, known["precision"], known) if self.on == "delta" else known
        if self.on == "delta":
            return consolidated(task, state, self.importance(task, task_state), self.decay)
        return super().end_task(task, state, task_state)

    def from_posterior(self, posterior: Posterior, model: nn.Module, where: str) -> State:
        """As of every method; of a LoRA model the file is that of its base, measured before it got an adapter."""
        if self.on == "weights":
            return super().from_posterior(posterior, model, where)
        weights = low_rank_weights(model, model.parameters())
        if not weights:
            raise ValueError(NO_ADAPTER)
        plain = {plain_name(name): weight for name, weight in model.named_parameters() if "lora_" not in name}
        known = replace(posterior, mean=None).over(plain, where).precision
        missing = [plain_name(weight.name) for weight in weights if plain_name(weight.name) not in known]
        if missing:
            raise ValueError(f"{where} has no precision for {missing[0]!r}, which this model adapts")
        found = {weight.name: known[plain_name(weight.name)] for weight in weights}
        return {
            "precision": {w.name: found[w.name].T.contiguous() if w.transposed else found[w.name] for w in weights},
            "factors": {},
            "probe": {},
            "merged": {},
        }
