"""What a run is: an experiment, over tasks, with scores. It is all that the lab knows.

An experiment is one class. Its instance learns task after task and says what each is worth; its class says what may stand in a
benchmark. Resume, locks, costs, tuning, TensorBoard and report are written once, against this file:

    class Coin(Experiment):
        tasks = ("one side", "the other")

        def learn(self, number, on_progress): ...      # one task; returns what it took
        def measure(self, after): ...                  # what every task is worth now
        def state_dict(self): ...                      # complete, after any step
        def load_state_dict(self, state): ...

A benchmark file names it, `experiment = "coin.py:Coin"`, and `afec run coin.toml --method heads` runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from afec.metrics import ANY, FRACTION, Limits
from afec.stopping import NEVER, Stop

if TYPE_CHECKING:
    from afec.learner import TaskRecord

__all__ = [
    "ACCURACY",
    "RETURN",
    "SCORE_KINDS",
    "SECTIONS",
    "Context",
    "Experiment",
    "OnProgress",
    "Progress",
    "Score",
    "ScoreKind",
    "Section",
    "Setup",
]

SECTIONS = ("stream", "net", "training")
"""The sections of a benchmark beside [method]."""
Section = dict[str, Any]


@dataclass(frozen=True)
class ScoreKind:
    """What a score is, and how it is shown."""

    name: str
    low: float
    high: float
    unit: str
    """Behind a number, as in `75.3 %`."""
    difference: str
    """The unit of a difference of two scores."""
    factor: float
    """A score times this is what is shown."""
    average: str
    """How the mean over the tasks learned so far is called."""
    digits: int = 1

    @property
    def limits(self) -> Limits:
        """The lowest and the highest score that there can be, as `afec.metrics` takes them."""
        return self.low, self.high

    @property
    def title(self) -> str:
        """As a table's title has it: `accuracy in %`."""
        return f"{self.name} in {self.unit}" if self.unit else self.name

    @property
    def in_unit(self) -> str:
        """What stands behind a number: ` %`, or nothing."""
        return f" {self.unit}" if self.unit else ""

    @property
    def in_difference(self) -> str:
        """What stands behind a difference: ` points`, or nothing."""
        return f" {self.difference}" if self.difference else ""

    def shown(self, score: float) -> str:
        """The score as a table has it, without its unit."""
        return f"{self.factor * score:.{self.digits}f}"


ACCURACY = ScoreKind("accuracy", *FRACTION, "%", "points", 100, "AAC")
RETURN = ScoreKind("return", *ANY, "", "", 1, "average return")
SCORE_KINDS = {kind.name: kind for kind in (ACCURACY, RETURN)}


@dataclass(frozen=True)
class Score:
    """What one task is worth after so many tasks: one line of scores.csv."""

    after: int
    """How many tasks had been learned; 0 is before the first."""
    task: int
    """Counted from 1."""
    name: str
    validation: float
    """NaN where there are no validation data."""
    test: float
    size: int
    """How many test samples, or episodes, the score is the mean of."""
    answers: tuple[int, ...] = ()
    """In the scenario `class`: to how many test samples a class of the first task was answered, of the second, …"""


@dataclass(frozen=True)
class Progress:
    """Where a run is: shown live, and written as an event."""

    task: int
    """Counted from 0."""
    name: str
    """The name of the task."""
    phase: str
    """What is being done: `train`, `theta_e`, …"""
    step: int
    """Counted from 1."""
    unit: str = "epoch"
    """What a step counts: epochs, updates, …"""
    values: Mapping[str, float] = field(default_factory=dict)
    """What the step came to: `lr`, `loss`, …"""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Setup:
    """Everything that determines a run, but its seed: plain values, as TOML has them, with every default written out."""

    method: str
    stream: Section
    net: Section
    training: Section
    settings: dict[str, Section]
    """Of each term of the method."""


@dataclass(frozen=True)
class Context:
    """What whoever runs an experiment gives it. Only the seed changes a number."""

    seed: int
    device: str | None = None
    """Where to run, if not where the setup says."""
    shared: Path | None = None
    """A folder for what several runs have in common."""
    made_by: Mapping[str, str] = field(default_factory=dict)
    """Who it is: the commit and the run, written beside what goes into `shared`."""
    stop: Stop = NEVER
    """Looked at after every step, once `on_progress` has been called; then `StoppedError` is raised."""


class Experiment(ABC):
    """One run: a method over tasks.

    Args:
        setup: what to run; it went through `complete` and `complete_method`.
        context: the seed, and where to run.
    """

    score: ClassVar[ScoreKind] = ACCURACY
    description: ClassVar[str] = ""
    references: ClassVar[Mapping[str, str]] = {}
    """What runs like a method beside this experiment and is none, such as bounds: its name, and its class as `module:Class`."""
    is_reference: ClassVar[bool] = False
    """Whether it is such a bound or reference itself: it then does not compete in tables."""
    alternatives: ClassVar[Mapping[str, str]] = {}
    """Settings of methods that say one thing in two ways: a later layer of a configuration that has one drops the other."""
    shared_out: ClassVar[bool] = False
    """Whether it learns in several processes, each with its share of every batch (`afec.parallel`)."""
    tasks: Sequence[str]
    """Their names, in the order in which they are learned."""
    origin: str = ""
    """Where the initial weights are from, if not from a seed."""

    def __init__(self, setup: Setup, context: Context) -> None:
        self.setup, self.context = setup, context

    # -- a run ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def learn(self, number: int, on_progress: OnProgress) -> TaskRecord:
        """Learn task `number` (counted from 0), from where `load_state_dict` has left it; returns what it took."""

    @abstractmethod
    def measure(self, after: int) -> list[Score]:
        """What the tasks are worth now that `after` of them are learned; also asked before the first."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that a fresh process needs to go on bit for bit; complete whenever `on_progress` is called."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict()` was taken."""

    def finish(self, folder: Path, on_progress: OnProgress) -> None:  # noqa: B027 - most write nothing
        """Write what predictions and pictures will need into the run's directory."""

    # -- what may stand in a benchmark ----------------------------------------------------------------------------

    @classmethod
    def complete(cls, section: str, values: Section) -> Section:
        """A section of a benchmark, one of `SECTIONS`, with its defaults; a ValueError says what is wrong with it."""
        return dict(values)

    @classmethod
    def terms(cls, method: str) -> tuple[str, ...]:
        """The names in a method's expression that have settings, sorted; a ValueError for one that is not known."""
        return tuple(sorted(method.split("+")))

    @classmethod
    def title(cls, method: str) -> str:
        """The method as tables call it."""
        return method

    @classmethod
    def complete_term(cls, term: str, settings: Section) -> Section:
        """The settings of one term with its defaults; a ValueError says what is wrong with them."""
        return dict(settings)

    @classmethod
    def complete_method(cls, method: str, settings: dict[str, Section]) -> tuple[str, dict[str, Section]]:
        """The method's name as everything calls it, and the settings of its terms with their defaults."""
        return "+".join(cls.terms(method)), {term: cls.complete_term(term, table) for term, table in settings.items()}

    @classmethod
    def check(cls, setups: Sequence[Setup], context: Context) -> list[str]:
        """Raise for what cannot be run, before hours of work; returns what is worth telling. Setups share a benchmark."""
        origins = [cls(setup, context).origin for setup in setups[:1]]
        return [origin for origin in origins if origin]

    # -- tuning ---------------------------------------------------------------------------------------------------

    @classmethod
    def stages(cls, method: str, *, together: bool) -> list[tuple[str, tuple[str, ...]]]:
        """In which order settings are searched: a method, and the terms whose settings are searched in it."""
        return [(method, cls.terms(method))]

    @classmethod
    def check_grid(cls, term: str, grid: Section) -> None:
        """Raise a ValueError for a [tune] table that cannot be searched."""
        for key, values in grid.items():
            if not isinstance(values, list) or not all(type(value) in (int, float) for value in values) or not values:
                raise ValueError(f".{key}: expected a list of numbers, such as [1, 10, 100]; got {values!r}")

    @classmethod
    def has_grid(cls, term: str, grid: Section, *, beta: bool) -> bool:
        """Whether the [tune] table of a benchmark says what to search; otherwise a default is searched."""
        return bool(grid)

    @classmethod
    def validation_sizes(cls, setup: Setup, context: Context) -> list[int]:
        """How many validation samples the score of each task rests on, where that is known: it says how noisy a choice is."""
        return []

    @classmethod
    def most_samples(cls, setup: Setup, context: Context) -> int | None:
        """How many samples a run learns from at most, where that is known before it is run."""
        return None

    @classmethod
    def search_space(cls, term: str, grid: Section, settings: Section, *, beta: bool) -> dict[str, tuple[float, ...]]:
        """The values of each setting of a term: those of the benchmark's [tune] table, as this run has to take them."""
        return {key: tuple(map(float, values)) for key, values in grid.items()}

    @classmethod
    def searched_settings(cls, term: str, values: Mapping[str, float]) -> dict[str, float]:
        """The settings that stand in a run's configuration for these searched values."""
        return dict(values)

    @classmethod
    def for_tuning(cls, setup: Setup, context: Context) -> Setup:
        """The same run with validation data, where it has none."""
        return setup
