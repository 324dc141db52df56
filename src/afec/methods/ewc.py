"""EWC, elastic weight consolidation (Kirkpatrick et al. 2017), as the AFEC paper uses it (Sec. 3.1, App. B.1).

    L(θ) = L_new(θ) + λ/2 · Σ_i F_{1:t−1,i} (θ_i − θ*_i)²

θ* are the weights at the end of the latest task (one anchor), F_{1:t} = ((t−1)·F_{1:t−1} + F_t)/t the running average of the
tasks' Fisher information; with a `decay` γ it is the online F ← γ·F + F_t instead. `strength` is λ; the ½ is not part of it.
Which λ is right depends on the Fisher kind: `batched` with B samples is smaller than `empirical`, by a factor of up to
about B, so its λ are larger (docs/fisher.md has measured factors).

    guard = afec.EWC(strength=500)
    with guard.learning(model, optimizer, loader, loss_fn):
        train(model, optimizer, loader)
"""

from __future__ import annotations

from typing import Literal, final

from afec.fisher import Kind
from afec.gaussian import Gaussian, running_average, running_sum
from afec.guard import FisherOptions, GuardedTask, Params, State, Term, checked_weight
from afec.methods.presets import Preset, settings

__all__ = ["EWC"]


@final
class EWC(Term):
    """Pull each weight to where the old tasks left it, by how much it mattered to them.

    Args:
        strength: λ ≥ 0. Zero switches the method off (fine-tuning, bit for bit).
        decay: γ in [0, 1] of the online Fisher, F ← γ·F + F_t, or `mean`, the running average over the tasks.
        fisher: `exact`, `sample`, `empirical`, `batched`, or `auto`: `exact` up to ten outputs, `sample` beyond, `empirical`
            where the likelihood is not known.
        fisher_batch: B of the `batched` kind.
        fisher_dropout: leave dropout on while the `batched` kind is measured.
        preset: `paper` (`empirical`) or `official` (`batched`, B = 20, dropout on); what is given beside it wins.
        params: what is guarded, a module or parameters; default all that require grad (multi-head nets: the backbone).
    """

    name = "ewc"

    def __init__(
        self,
        strength: float,
        *,
        decay: float | Literal["mean"] = "mean",
        fisher: Kind | Literal["auto"] | None = None,
        fisher_batch: int | None = None,
        fisher_dropout: bool | None = None,
        preset: Preset = "default",
        params: Params = None,
    ) -> None:
        super().__init__(params)
        self.strength = checked_weight("EWC: strength (λ)", strength)
        self.decay = decay if decay == "mean" else checked_weight("EWC: decay (γ), if it is not 'mean',", decay)
        if self.decay != "mean" and self.decay > 1:
            raise ValueError(f"EWC: decay (γ) must be in [0, 1], or 'mean'; got {decay!r}")
        chosen = settings(self.name, preset, fisher=fisher, fisher_batch=fisher_batch, fisher_dropout=fisher_dropout)
        self.fisher = FisherOptions(chosen["fisher"], chosen["fisher_batch"], chosen["fisher_dropout"])

    def described(self) -> str:
        """`EWC(strength=…)`."""
        return f"EWC(strength={self.strength:g}, fisher={self.fisher.kind!r})"

    @property
    def is_off(self) -> bool:
        """λ = 0."""
        return self.strength == 0

    def lacks(self, task: GuardedTask) -> str | None:
        """A likelihood, for a Fisher that needs one."""
        return task.refuses(self.fisher)

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """The posterior of all tasks so far, times λ; nothing in the first task."""
        if not state:
            return []
        return [(self.strength, task.remembered(Gaussian(state["mean"], state["precision"])))]

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]]:
        """Before the first task: as if the present weights had just learned these data."""
        if state:
            return self.quadratics(task, state, {})
        return [(self.strength, Gaussian(task.values(), task.fisher(self.fisher, "rehearse", most_batches=4)))]

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """F_{1:t}, or the online F, around the weights as they are now."""
        old = Gaussian(state["mean"], state["precision"]) if state else None
        if old is not None:
            old = old.grown_to(dict(task.model.named_parameters()))
        new = Gaussian(task.values(), task.fisher(self.fisher, "ewc"))
        if self.decay == "mean":
            posterior = running_average(old, new, task.number + 1)
        else:
            posterior = running_sum(None if old is None else _scaled(old, self.decay), new)
        return {"mean": posterior.mean, "precision": posterior.precision}


def _scaled(gaussian: Gaussian, factor: float) -> Gaussian:
    return Gaussian(gaussian.mean, {name: factor * precision for name, precision in gaussian.precision.items()})
