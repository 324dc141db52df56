"""Every strategy of ours keeps the contracts of strategies; one that breaks one is caught by its name."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

import afec
from afec import AFEC
from afec.strategy import Strategy, Training
from afec.testing import STRATEGY_CONTRACTS, ContractError, check_method

STRATEGIES = {
    "ags-cl": lambda strength: afec.AGSCL(strength, mu=1),
    "progress-compress": afec.ProgressCompress,
    "progress-compress kept": partial(afec.ProgressCompress, column="kept"),
    "ags-cl by step": lambda strength: afec.AGSCL(strength, mu=0.1, proximal="step"),
    "ags-cl+afec": lambda strength: afec.AGSCL(strength, mu=1) + AFEC(strength),
    "ags-cl+si": lambda strength: afec.AGSCL(strength, mu=1) + afec.SI(strength),
    "progress-compress+afec": lambda strength: afec.ProgressCompress(strength) + AFEC(strength),
    "lwf": afec.LwF,
    "derpp": lambda strength: afec.DERPP(alpha=strength, per_class=2),
    "icarl": lambda strength: afec.ICaRL(strength=strength, per_class=2),
    "icarl sigmoid, in all": lambda strength: afec.ICaRL(strength=strength, distillation="sigmoid", total=18),
    "lucir": lambda strength: afec.LUCIR(strength=strength, per_class=2, finetune_epochs=2),
    "podnet": lambda strength: afec.PODNet(spatial=strength, per_class=2, finetune_epochs=2),
    "er+afec": lambda strength: afec.ER(per_class=2) + AFEC(strength),
    "podnet+ewc+afec": lambda strength: (
        afec.PODNet(per_class=2, finetune_epochs=2) + afec.EWC(strength) + AFEC(strength)
    ),
}
GROWS = ("derpp", "icarl", "icarl sigmoid, in all", "lucir", "podnet", "er+afec", "podnet+ewc+afec")
SLOW = pytest.mark.slow


@pytest.mark.filterwarnings("ignore:lwf")  # which keeps no examples
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("ags-cl", "progress-compress", "icarl") else SLOW) for n in STRATEGIES]
)
def test_our_strategies_keep_their_contracts(name):
    report = check_method(STRATEGIES[name])
    assert report.ok
    assert [result.contract for result in report] == list(STRATEGY_CONTRACTS)
    exempt = [result.contract for result in report if result.outcome == "exempt"]
    assert exempt == ["bounded"] * GROWS.count(name)


class AStrategy(Strategy):
    """Learns as fine-tuning does, faster by its strength; those below break one contract each."""

    name = "a-strategy"

    def __init__(self, strength):
        super().__init__()
        self.strength = strength

    def described(self):
        return "AStrategy()"

    def trainings(self, context):
        self.seen = getattr(self, "seen", 0) + 1

        def after_step(lr):
            with torch.no_grad():
                for weight in context.net.backbone.parameters():
                    weight.mul_(1 - 0.01 * self.strength / (1 + self.strength) if context.number else 1)

        yield Training("train", context.net, context.loss, after_step=after_step)
        context.state = self.keep(context)

    def keep(self, context):
        return {"count": torch.zeros(1)}


DRAWS = itertools.count()


class DrawsForItself(AStrategy):
    def keep(self, context):
        return {"drawn": float(next(DRAWS))}  # from no generator: those are the learner's


class WritesIntoItsState(AStrategy):
    def keep(self, context):
        count = context.state.get("count", torch.zeros(1))
        count += 1
        return {"count": count}


class ForgetsEarly(AStrategy):
    def trainings(self, context):
        self.state = {"begun": context.number}  # before anything is learned
        yield from super().trainings(context)

    def load_state_dict(self, state):
        pass


class KeepsAnObject(AStrategy):
    def keep(self, context):
        return {"count": torch.nn.Parameter(torch.zeros(1))}


class RemembersOnTheInstance(AStrategy):
    def keep(self, context):
        return {"count": self.seen}


class Hoards(AStrategy):
    def keep(self, context):
        return {**context.state, context.number: torch.zeros(1)}


class DoesNothing(AStrategy):
    def trainings(self, context):
        yield Training("train", context.net, context.loss)


class Turns(AStrategy):
    def __radd__(self, other):
        return super().__radd__(other.__class__(forgetting=9.0))


@pytest.mark.parametrize(
    ("broken", "contract"),
    [
        (DrawsForItself, "deterministic"),
        (ForgetsEarly, "abort"),
        (WritesIntoItsState, "state"),
        (KeepsAnObject, "state"),
        (RemembersOnTheInstance, "resume"),
        (Hoards, "bounded"),
        (DoesNothing, "pulls"),
        (Turns, "commutes"),
    ],
)
def test_a_strategy_that_breaks_a_contract_is_caught_by_its_name(broken, contract):
    assert check_method(AStrategy, only=[contract]).ok
    with pytest.raises(ContractError, match=f"breaks the contract `{contract}`"):
        check_method(broken, only=[contract])
