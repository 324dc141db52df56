"""Every method keeps the contracts, and every contract can be broken: a method that breaks it is caught by its name."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import afec
from afec import AFEC, EWC, Gaussian
from afec.guard import Term, checked_weight
from afec.randomness import forked
from afec.strategy import Strategy, Training
from afec.testing import CONTRACTS, STRATEGY_CONTRACTS, ContractError, check_method
from afec.testing.compare import difference, not_plain, shape_of

PAGE = Path(__file__).parent.parent / "docs" / "contracts.md"

# -- our methods --------------------------------------------------------------------------------------------------------

OLD = {name.lower(): getattr(afec, name) for name in ("EWC", "MAS", "SI", "RWALK")}
FORGETTING = {
    "afec": partial(AFEC, epochs=2),
    "afec-main": partial(AFEC, epochs=2, expand_from="main"),
    "afec-carry": partial(AFEC, epochs=2, expand_from="carry"),
    "afec-interleaved": partial(AFEC, schedule="interleaved"),
    "afec-interleaved-main": partial(AFEC, schedule="interleaved", expand_from="main"),
    "afec-interleaved-carry": partial(AFEC, schedule="interleaved", expand_from="carry"),
    "afec-paper": partial(AFEC, epochs=2, preset="paper"),
    "afec-official": partial(AFEC, preset="official"),
}
# The only exemptions that our own methods declare: {method as it is called below: {contract: reason}}.
UNCLAMPED = {"nonnegative": "the released code does not clamp the importance of a weight at 0"}
EXEMPT = {"si-official": UNCLAMPED, "rwalk-official": UNCLAMPED}


def summed(old, forgetting):
    return lambda strength: old(strength=strength) + forgetting(strength)


def our_methods():
    """By name: the methods alone, the variants of AFEC alone and beside EWC, and AFEC beside each of the others."""
    found = dict(OLD)
    for name, method in OLD.items():
        found[f"{name}-official"] = partial(method, preset="official")
    found["ewc-paper"] = partial(EWC, preset="paper")
    for variant, forgetting in FORGETTING.items():
        found[variant] = lambda strength, forgetting=forgetting: forgetting(strength)
        found[f"ewc+{variant}"] = summed(EWC, forgetting)
    for name, method in OLD.items():
        found[f"{name}+afec"] = summed(method, FORGETTING["afec"])
        found[f"{name}-official+afec-official"] = summed(found[f"{name}-official"], FORGETTING["afec-official"])
    return found


OURS = our_methods()
QUICK = {*OLD, "afec", "ewc+afec", "si-official+afec-official"}


def exempt_of(name):
    return EXEMPT.get(name.split("+")[0], {})


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OURS])
def test_our_methods_keep_the_contracts(name):
    report = check_method(OURS[name])
    assert report.ok
    assert [result.contract for result in report] == list(CONTRACTS)
    assert {result.contract: result.reason for result in report if result.outcome == "exempt"} == exempt_of(name)
    assert not report.needless


STRATEGIES = {
    "ags-cl": lambda strength: afec.AGSCL(strength, mu=1),
    "progress-compress": afec.ProgressCompress,
    "progress-compress kept": partial(afec.ProgressCompress, column="kept"),
    "ags-cl by step": lambda strength: afec.AGSCL(strength, mu=0.1, proximal="step"),
    "ags-cl+afec": lambda strength: afec.AGSCL(strength, mu=1) + AFEC(strength),
    "ags-cl+si": lambda strength: afec.AGSCL(strength, mu=1) + afec.SI(strength),
    "progress-compress+afec": lambda strength: afec.ProgressCompress(strength) + AFEC(strength),
}
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("ags-cl", "progress-compress") else SLOW) for n in STRATEGIES]
)
def test_our_strategies_keep_their_contracts(name):
    report = check_method(STRATEGIES[name])
    assert report.ok
    assert [result.contract for result in report] == list(STRATEGY_CONTRACTS)
    assert {result.outcome for result in report} == {"passed"}


class AStrategy(Strategy):
    """Learns as fine-tuning does, faster by its strength; those below break one contract each."""

    name = "a-strategy"

    def __init__(self, strength):
        super().__init__()
        self.strength = strength

    def described(self):
        return "AStrategy()"

    def trainings(self, work):
        self.seen = getattr(self, "seen", 0) + 1

        def after_step(lr):
            with torch.no_grad():
                for weight in work.net.backbone.parameters():
                    weight.mul_(1 - 0.01 * self.strength / (1 + self.strength) if work.number else 1)

        yield Training("train", work.net, work.loss, after_step=after_step)
        work.state = self.keep(work)

    def keep(self, work):
        return {"count": torch.zeros(1)}


class DrawsForItself(AStrategy):
    def keep(self, work):
        return {"drawn": random.SystemRandom().random()}  # from no seed: those that have one are the learner's


class WritesIntoItsState(AStrategy):
    def keep(self, work):
        count = work.state.get("count", torch.zeros(1))
        count += 1
        return {"count": count}


class ForgetsEarly(AStrategy):
    def trainings(self, work):
        self.state = {"begun": work.number}  # before anything is learned
        yield from super().trainings(work)

    def load_state_dict(self, state):
        pass


class KeepsAnObject(AStrategy):
    def keep(self, work):
        return {"count": torch.nn.Parameter(torch.zeros(1))}


class RemembersOnTheInstance(AStrategy):
    def keep(self, work):
        return {"count": self.seen}


class Hoards(AStrategy):
    def keep(self, work):
        return {**work.state, work.number: torch.zeros(1)}


class DoesNothing(AStrategy):
    def trainings(self, work):
        yield Training("train", work.net, work.loss)


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


def test_the_first_expansion_of_a_process_draws_nothing():
    """An import may draw: rich does from `random`. In the middle of a run that would make it another than a resumed one."""
    lines = [
        "from afec import AFEC",
        "from afec.testing import check_method",
        "check_method(lambda strength: AFEC(strength, epochs=2), only='deterministic')",
    ]
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def section(title):
    """The cells of each row of the table under a heading of the page, without the head."""
    text = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in row] for row in rows[2:]]


def test_the_page_lists_every_contract_and_exemption():
    assert [row[0] for row in section("The contracts")] == list(CONTRACTS)
    declared = [[name, contract, reason] for name, each in EXEMPT.items() for contract, reason in each.items()]
    assert section("Which methods are exempt") == declared
    assert [row[0] for row in section("Strategies")] == list(STRATEGY_CONTRACTS)


# -- broken ones --------------------------------------------------------------------------------------------------------


class L2(Term):
    """The whole method of docs/methods.md."""

    name = "l2"

    def __init__(self, strength, params=None):
        super().__init__(params)
        self.strength = checked_weight("L2: strength", strength)

    def described(self):
        return f"{type(self).__name__}(strength={self.strength:g})"

    @property
    def is_off(self):
        return self.strength == 0

    def quadratics(self, task, state, flight):
        return [(self.strength, task.remembered(Gaussian.isotropic(state["mean"], 1.0)))] if state else []

    def rehearse(self, task, state, seconds):
        return [(self.strength, Gaussian.isotropic(task.values(), 1.0))]

    def end_task(self, task, state, flight):
        return {"mean": task.values()}


class AdvancesTorch(L2):
    def end_task(self, task, state, flight):
        torch.rand(1)
        return super().end_task(task, state, flight)


class AdvancesNumpy(L2):
    def begin_task(self, task, state):
        np.random.rand()
        return {}


class AdvancesPython(L2):
    def begin_epoch(self, task, state, flight):
        random.random()
        return flight


class DrawsInEveryStep(L2):
    observes = frozenset({"gradient"})

    def after_step(self, task, flight, step):
        torch.rand(1)
        return flight


class NeverOff(L2):
    """Reads the data although nothing pulls."""

    is_off = False

    def end_task(self, task, state, flight):
        with forked(task.seed("all")):
            list(task.batches("all"))
        return super().end_task(task, state, flight)


class PullsAtZero(L2):
    is_off = False

    def __init__(self, strength, params=None):
        super().__init__(strength or 0.1, params)


class LeavesEvalMode(L2):
    def end_task(self, task, state, flight):
        task.model.train()
        return super().end_task(task, state, flight)


class DropsGradients(L2):
    def end_task(self, task, state, flight):
        task.model.zero_grad()
        return super().end_task(task, state, flight)


class ChangesBuffers(L2):
    def end_task(self, task, state, flight):
        for buffer in task.model.buffers():
            buffer.add_(1)
        return super().end_task(task, state, flight)


class ChangesWeights(L2):
    @torch.no_grad()
    def end_task(self, task, state, flight):
        for weight in task.weights.values():
            weight.mul_(0.99)
        return super().end_task(task, state, flight)


class ForgetsMomentum(L2):
    def begin_task(self, task, state):
        task.optimizers[0].state.clear()
        return {}


class LeavesItsHook(L2):
    """Takes the hook off at the end only."""

    def begin_task(self, task, state):
        self.handle = task.model.register_forward_hook(lambda module, inputs, output: None)
        return {}

    def end_task(self, task, state, flight):
        if hasattr(self, "handle"):
            self.handle.remove()
        return super().end_task(task, state, flight)


class KeepsItsHook(L2):
    """Never takes it off."""

    def end_task(self, task, state, flight):
        register_optimizer_step_post_hook(lambda *_: None)
        return super().end_task(task, state, flight)


class CountsInPlace(L2):
    """Writes to the old state when a task begins."""

    def begin_task(self, task, state):
        if state:
            state["begun"] += 1
        return {}

    def end_task(self, task, state, flight):
        return {"mean": task.values(), "begun": torch.ones(1) if not state else state["begun"].clone()}


class SumsInPlace(L2):
    """A path sum that is written to, as SI's would be by a careless hand."""

    observes = frozenset({"gradient"})

    def begin_task(self, task, state):
        return {"path": torch.zeros(1)}

    def after_step(self, task, flight, step):
        flight["path"] += 1
        return flight


class KeepsASet(L2):
    def end_task(self, task, state, flight):
        return {"mean": task.values(), "seen": {"a", "b"}}


class KeepsNumpyNumbers(L2):
    def end_task(self, task, state, flight):
        return {"mean": task.values(), "scale": np.float64(1.0)}


class KeepsLiveWeights(L2):
    """The state is the weights themselves, not copies."""

    def end_task(self, task, state, flight):
        return {"mean": {name: weight.detach() for name, weight in task.weights.items()}}


class RemembersOnTheInstance(L2):
    """Outside the state: a loaded guard does not know it."""

    scale = 0.0

    def quadratics(self, task, state, flight):
        return [(self.strength * self.scale, gaussian) for _, gaussian in super().quadratics(task, state, flight)]

    def end_task(self, task, state, flight):
        self.scale += 1.0
        return super().end_task(task, state, flight)


class CountsEpochsOnTheInstance(L2):
    """Of the present task only, so that only a task taken up in its middle goes wrong."""

    def begin_task(self, task, state):
        self.epochs = 0
        return {}

    def begin_epoch(self, task, state, flight):
        self.epochs = getattr(self, "epochs", 0) + 1
        return flight

    def end_task(self, task, state, flight):
        return {"mean": task.values(), "epochs": getattr(self, "epochs", 0)}


class KeepsAllAnchors(L2):
    def end_task(self, task, state, flight):
        return {"mean": task.values(), "all": [*state.get("all", []), task.values()]}


class KeepsAList(L2):
    """No tensor grows, the list does."""

    def end_task(self, task, state, flight):
        return {"mean": task.values(), "log": [*state.get("log", []), 1.0]}


class Inert(L2):
    def quadratics(self, task, state, flight):
        return []


class SaysTwice(L2):
    """The value is twice what pulls."""

    def begin_task(self, task, state):
        honest = task.penalty
        task.penalty = lambda: 2 * honest()
        return {}


class PushesAway(L2):
    def quadratics(self, task, state, flight):
        found = super().quadratics(task, state, flight)
        return [(weight, Gaussian(g.mean, {n: -0.01 * f for n, f in g.precision.items()})) for weight, g in found]


class PushesOneAway(L2):
    """One number of one weight has a negative precision; the sum over all of them never shows it."""

    def quadratics(self, task, state, flight):
        found = super().quadratics(task, state, flight)
        for _, gaussian in found:
            gaussian.precision["body.0.bias"][1] = -1e-3
        return found


class NotANumber(L2):
    """At the third task, so that there is nothing wrong with the second."""

    def begin_task(self, task, state):
        if task.number == 2 and task.device.type == "cpu" and next(iter(task.weights.values())).dtype is torch.float64:
            task.penalty = lambda: torch.tensor(float("nan"))
        return {}


class FreezesTheRest(L2):
    def begin_task(self, task, state):
        for name, weight in task.model.named_parameters():
            weight.requires_grad_(name in task.weights)
        return {}


class PullsTheRest(L2):
    def begin_task(self, task, state):
        for name, weight in task.model.named_parameters():
            if name not in task.weights:
                weight.register_hook(lambda grad: grad + 0.1)
        return {}


class CountsTheRest(L2):
    def begin_task(self, task, state):
        honest = task.penalty
        rest = [weight for name, weight in task.model.named_parameters() if name not in task.weights]
        task.penalty = lambda: honest() + sum(weight.detach().square().sum() for weight in rest)
        return {}


class CannotGrow(L2):
    """Without task.remembered."""

    def quadratics(self, task, state, flight):
        return [(self.strength, Gaussian.isotropic(state["mean"], 1.0))] if state else []


class InfiniteWhenGrown(L2):
    def quadratics(self, task, state, flight):
        found = super().quadratics(task, state, flight)
        grown = found and any(len(m) != len(state["mean"][n]) for n, m in found[0][1].mean.items())
        return [(float("inf"), gaussian) for _, gaussian in found] if grown else found


class StrongerOnTheLeft(L2):
    def __add__(self, other):
        self.strength *= 2
        return super().__add__(other)


class NamedByOrder(L2):
    def __add__(self, other):
        found = super().__add__(other)
        self.name = "left"
        return found


BROKEN = {
    AdvancesTorch: {"deterministic"},
    AdvancesNumpy: {"deterministic"},
    AdvancesPython: {"deterministic"},
    DrawsInEveryStep: {"deterministic"},
    NeverOff: {"zero"},
    PullsAtZero: {"zero"},
    LeavesEvalMode: {"untouched"},
    DropsGradients: {"untouched"},
    ChangesBuffers: {"untouched"},
    ChangesWeights: {"untouched"},
    ForgetsMomentum: {"untouched"},
    KeepsItsHook: {"untouched"},
    LeavesItsHook: {"abort"},
    CountsInPlace: {"abort", "state"},
    SumsInPlace: {"abort", "state"},
    KeepsASet: {"state"},
    KeepsNumpyNumbers: {"state"},
    KeepsLiveWeights: {"abort", "pulls", "resume", "state"},
    RemembersOnTheInstance: {"state", "resume"},
    CountsEpochsOnTheInstance: {"resume"},
    KeepsAllAnchors: {"bounded"},
    KeepsAList: {"bounded"},
    Inert: {"pulls"},
    SaysTwice: {"pulls"},
    PushesAway: {"nonnegative"},
    PushesOneAway: {"nonnegative"},
    NotANumber: {"nonnegative"},
    FreezesTheRest: {"guards_only_params"},
    PullsTheRest: {"guards_only_params"},
    CountsTheRest: {"guards_only_params"},
    CannotGrow: {"grows"},
    InfiniteWhenGrown: {"grows"},
    StrongerOnTheLeft: {"commutes"},
    NamedByOrder: {"commutes"},
}


def test_the_method_of_the_page_keeps_them():
    report = check_method(L2)
    assert report.ok
    assert not report.failed
    assert all(result.outcome == "passed" for result in report)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_method_is_caught(broken):
    report = check_method(broken, only=BROKEN[broken], raise_on_failure=False)
    assert set(report.failed) == BROKEN[broken], str(report)


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_method_breaks_no_other_contract(broken):
    report = check_method(broken, raise_on_failure=False)
    assert set(report.failed) == BROKEN[broken], str(report)


def test_every_contract_alone_has_a_method_that_breaks_it():
    assert {next(iter(broken)) for broken in BROKEN.values() if len(broken) == 1} == set(CONTRACTS)


# -- the report ---------------------------------------------------------------------------------------------------------


class RollsDice(L2):
    """Breaks nearly everything; what is named first is the cause."""

    def end_task(self, task, state, flight):
        noise = float(np.random.default_rng().normal())
        return {"mean": {name: value + noise for name, value in task.values().items()}}


class Raises(L2):
    def begin_epoch(self, task, state, flight):
        raise ZeroDivisionError("one over nothing")


class Declares(KeepsAList):
    exempt_contracts = {"bounded": "keeps a log", "pulls": "for no reason at all"}  # noqa: RUF012


def test_the_error_says_method_contract_seen_and_expected():
    with pytest.raises(ContractError) as caught:
        check_method(KeepsAllAnchors)
    error = caught.value
    assert error.contract == "bounded"
    assert error.method == "l2 (KeepsAllAnchors(strength=10))"
    message = str(error)
    assert all(part in message for part in (error.method, "`bounded`", error.seen, error.expected, "exempt={'bounded'"))
    # The net has 4·8 + 8 + 2·8 + 8·3 + 3 = 83 weights: the anchor and a list of one, then of two.
    assert "166 numbers in task 2 and 249 in task 3" in error.seen
    assert "['all'] has 1 entries in one and 2 in the other" in error.seen


def test_the_first_failure_is_the_cause():
    with pytest.raises(ContractError) as caught:
        check_method(RollsDice)
    assert caught.value.contract == "deterministic"
    assert "two runs from the same seed differ" in caught.value.seen


def test_an_exception_of_the_method_is_a_failure_with_its_cause():
    with pytest.raises(ContractError, match="ZeroDivisionError: one over nothing") as caught:
        check_method(Raises)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exemption_is_listed_with_its_reason_and_said_to_be_needless_where_it_holds():
    given = {"bounded": "keeps a log", "grows": "not needed"}
    report = check_method(KeepsAList, exempt=given, only=["grows", "bounded", "zero"])
    assert [(result.contract, result.outcome, result.holds) for result in report] == [
        ("zero", "passed", True),
        ("bounded", "exempt", False),
        ("grows", "exempt", True),
    ]
    assert report.ok
    assert report.needless == ["grows"]
    assert report["bounded"].reason == "keeps a log"
    table = str(report).splitlines()
    assert "keeps its contracts" in table[0]
    assert re.fullmatch(r"  zero     passed   +[\d.]+ s", table[1])
    assert re.fullmatch(r"  bounded  exempt   +[\d.]+ s  keeps a log", table[2])
    assert re.fullmatch(r"  grows    exempt   +[\d.]+ s  not needed \(but it holds: .*\)", table[3])


def test_a_method_declares_its_exemptions_itself_also_in_a_sum():
    for make in (Declares, summed(Declares, FORGETTING["afec"])):
        report = check_method(make, only=["bounded", "pulls"])
        assert [result.outcome for result in report] == ["exempt", "exempt"]
        assert report.needless == ["pulls"]


def test_failures_are_in_the_report():
    report = check_method(KeepsAList, only="bounded", raise_on_failure=False)
    assert report.failed == ["bounded"]
    assert not report.ok
    assert "breaks bounded" in str(report)
    assert report["bounded"].error.seen in str(report)
    with pytest.raises(KeyError, match="'zero' was not checked; checked were bounded"):
        report["zero"]


def test_the_users_random_numbers_are_left_alone():
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    check_method(AdvancesTorch, only=["deterministic", "state"], raise_on_failure=False)
    now = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(states[0], now[0])
    assert states[1:] == now[1:]


ONE = L2(1.0)


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (ONE, {}, TypeError, "make must build a fresh guard"),
        (lambda strength: ONE, {}, TypeError, "a new guard at every call"),
        (lambda strength: strength, {}, TypeError, "must return a Guard.*got 10"),
        (L2, {"strength": 0}, ValueError, "strength must be > 0.*got 0"),
        (L2, {"only": ["bound"]}, ValueError, "only= names 'bound'.*contracts are deterministic, zero"),
        (L2, {"exempt": {"bound": "why"}}, ValueError, "exempt= names 'bound'"),
        (L2, {"exempt": {"bounded": " "}}, ValueError, "'bounded' needs a reason, in words; got ' '"),
    ],
)
def test_errors_say_what_to_do(make, options, error, message):
    with pytest.raises(error, match=message):
        check_method(make, **options)


# -- comparing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"a": [1, 2]}, {"a": [1, 2]}, None),
        ({"a": [1, 2]}, {"a": [1, 3]}, "['a'][1] is 2"),
        ({"a": 1}, {"b": 1}, "the keys {'a'} in one and {'b'}"),
        ([1], [1, 1], "1 entries in one and 2"),
        (1, 1.0, "a int in one and a float"),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), None),
        (float("nan"), float("nan"), None),
        (torch.tensor(0.0), torch.tensor(-0.0), "differs by up to 0"),
        (torch.tensor(1), torch.tensor(1.0), "torch.int64"),
        (torch.ones(2), torch.ones(3), "shape (2,)"),
        (torch.tensor([True]), torch.tensor([False]), "differs by up to 1"),
    ],
)
def test_difference_is_bit_for_bit(one, other, found):
    assert (difference(one, other) or "") == "" if found is None else found in difference(one, other)


def test_what_is_plain():
    assert not_plain({"a": [1, 2.0, "b", None, True, torch.ones(1)], 0: (1,)}) is None
    for odd in (np.float64(1), np.ones(1), {1}, torch.nn.Parameter(torch.ones(1)), torch.ones(1, requires_grad=True)):
        assert "['a'][0]" in not_plain({"a": [odd]})
    assert "the key (1, 2)" in not_plain({(1, 2): 3})


def test_the_shape_of_a_state():
    assert shape_of({"a": torch.ones(2, 3), "b": [1, "x"]}) == {"a": 6, "b": ["value", "value"]}
