"""A method's options, each declared once as a typed field with its presets beside it.

    class EWC(Regulariser):
        fisher: Kind | Literal["auto"] = option(default="auto", paper="empirical", official="batched", doc="Which Fisher.")

The constructor, its checks, `repr`, the settings of configs and the tables in the docs read the field. `default` is what we
would use ourselves, `paper` takes the papers' equations to the letter, `official` does what the released code does
(docs/presets.md says why). An option that is given beside a preset wins over it; None is as good as not given.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, dataclass_transform, get_args, get_origin, get_type_hints

from torch import Tensor

from afec.fisher import Kind

__all__ = ["FisherFields", "FisherOptions", "Option", "OptionFields", "Preset", "checked_weight", "option"]

Preset = Literal["default", "paper", "official"]
Store = Literal["cpu", "bfloat16"]
RESTING = ("mean", "precision", "kept")  # the parts of a state that `store` is about
NOT_GIVEN: Any = inspect.Parameter.empty


@dataclass(frozen=True)
class Option:
    """One option of a method: its values in the presets, its bounds, and the sentence that explains it."""

    doc: str
    default: Any
    paper: Any
    official: Any
    symbol: str
    at_least: float
    above: float
    at_most: float
    kw_only: bool
    from_config: bool

    def checked(self, what: str, value: Any, hint: Any) -> Any:
        """The value, if it is of the type `hint` and within the bounds; else an error that says what was expected."""
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        numbers = [kind for kind in kinds if kind in (bool, float, int)]
        if (value is None and NoneType in kinds) or (isinstance(value, str) and value in words):
            return value
        if any(get_origin(kind) is not Literal and kind not in (*numbers, NoneType) for kind in kinds):
            return value  # a function, a module, a list: the method itself sees what it is
        if bool in numbers:
            if isinstance(value, bool):
                return value
            raise ValueError(f"{what} must be True or False; got {value!r}")
        for number in numbers:
            fits = isinstance(value, (int, number)) and not isinstance(value, bool) and math.isfinite(value)
            if fits and self.at_least <= value <= self.at_most and self.above < value:
                return number(value)
        named = f"{'one of ' if len(words) > 1 else ''}{', '.join(map(repr, words))}"
        expected = [self._range(number) for number in numbers] + [named] * bool(words)
        raise ValueError(f"{what} must be {', or '.join(expected)}; got {value!r}")

    def _range(self, number: type) -> str:
        if self.at_most < math.inf:
            return f"in {'(' if self.above >= 0 else '['}{max(self.above, self.at_least):g}, {self.at_most:g}]"
        low = f"> {self.above:g}" if self.above > -math.inf else f"≥ {self.at_least:g}"
        return f"{'an integer' if number is int else 'a finite number'} {low}"


def option(
    *,
    doc: str,
    default: Any = NOT_GIVEN,
    paper: Any = NOT_GIVEN,
    official: Any = NOT_GIVEN,
    symbol: str = "",
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    kw_only: bool = True,
    from_config: bool = True,
) -> Any:
    """Declare an option as a field of a method.

    Args:
        doc: what it means, in a sentence.
        default: its value where nothing is given; without it the option must be given.
        paper, official: its value under these presets, where it is another one.
        symbol: its letter in the equations.
        at_least, above, at_most: the bounds of a number.
        kw_only: False for one that may be given without its name.
        from_config: False for one that is an object of Python, which no config can name.
    """
    paper, official = (default if value is NOT_GIVEN else value for value in (paper, official))
    return Option(doc, default, paper, official, symbol, at_least, above, at_most, kw_only, from_config)


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
class _Fields:
    """What makes a constructor of fields."""

    options: ClassVar[dict[str, Option]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        declared = [(k, v) for base in cls.__mro__ for k, v in vars(base).items() if isinstance(v, Option)]
        found = dict(reversed(declared))  # the nearest declaration of a name counts
        names = dict.fromkeys(name for name, _ in declared)
        order = sorted(names, key=lambda name: (found[name].kw_only, name in ("preset", "params")))
        cls.options = {name: found[name] for name in order}
        if cls.__init__ is not _Fields.__init__:  # a constructor of its own
            cls.__signature__ = None  # type: ignore[attr-defined]
            return
        kinds = {True: inspect.Parameter.KEYWORD_ONLY, False: inspect.Parameter.POSITIONAL_OR_KEYWORD}
        parameters = [inspect.Parameter(k, kinds[v.kw_only], default=v.default) for k, v in cls.options.items()]
        cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        sentences = "\n".join(f"    {name}: {one.doc}" for name, one in cls.options.items())
        cls.__doc__ = f"{inspect.getdoc(cls)}\n\nArgs:\n{sentences}" if vars(cls).get("__doc__") else None

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__()
        cls = type(self)
        try:
            given = inspect.signature(cls).bind(*values, **named).arguments
        except TypeError as error:
            raise TypeError(f"{cls.__name__}: {error}. It takes {', '.join(cls.options)}") from error
        hints = _hints(cls)  # type: ignore[arg-type]
        for name, value in cls.settings(**given).items():
            one = cls.options[name]
            what = f"{cls.__name__}: {name}" + (f" ({one.symbol})" if one.symbol else "")
            setattr(self, name, one.checked(what, value, hints[name]))
        self.__post_init__()

    def __post_init__(self) -> None:
        """What the fields alone cannot say: checks of several together."""

    @classmethod
    def settings(cls, **given: Any) -> dict[str, Any]:
        """The value of every option: what is given, else what the preset says."""
        preset = given.get("preset") or "default"
        if preset not in get_args(Preset):
            raise ValueError(f"preset must be one of {', '.join(map(repr, get_args(Preset)))}; got {preset!r}")
        known = {k: None if v.default is NOT_GIVEN else getattr(v, preset) for k, v in cls.options.items()}
        return {**known, **{k: v for k, v in given.items() if v is not None}}

    def described(self) -> str:
        """The expression that makes it: `EWC(strength=100)`, with all that is not as by default."""
        shown = []
        for name, one in self.options.items():
            value = getattr(self, name)
            if name != "preset" and value is not one.default and not (one.from_config and value == one.default):
                text = f"{value:g}" if isinstance(value, float) else repr(value)
                shown.append(f"{name}={text if one.from_config else '…'}")
        return f"{type(self).__name__}({', '.join(shown)})"


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


class OptionFields(_Fields):
    """A method whose options are fields; a guard or a strategy is the other base beside it."""

    preset: Preset = option(
        default="default",
        doc="`default`, `paper` or `official`: what the other options are where they are not given.",
    )


@dataclass(frozen=True)
class FisherOptions:
    """Which Fisher: `auto` is `exact` up to ten outputs, `sample` beyond, `empirical` where no likelihood is known."""

    kind: Kind | Literal["auto"] = "auto"
    batch_size: int = 20  # of the `batched` kind
    dropout: bool = False  # the released code leaves dropout on
    samples: int | None = None  # of the task's data; None: all

    def __post_init__(self) -> None:
        if self.dropout and self.kind != "batched":
            raise ValueError(f"fisher_dropout=True goes with fisher='batched' only; got fisher={self.kind!r}")


class FisherFields(OptionFields):
    """The options of a method that measures a Fisher information."""

    fisher: Literal["auto"] | Kind = option(
        default="auto",
        paper="empirical",
        official="batched",
        doc="Which Fisher: `exact`, `sample`, `empirical`, `batched`, `reversed`, or `auto`: `exact` up to ten outputs, "
        "`sample` beyond, `empirical` where the likelihood is not known.",
    )
    fisher_batch: int = option(default=20, at_least=1, doc="B of the `batched` kind.")
    fisher_dropout: bool = option(
        default=False, official=True, doc="Whether dropout is on while the `batched` kind is measured."
    )

    fisher_samples: int | None = option(
        default=None,
        at_least=1,
        doc="On how many samples of the task the Fisher is measured, drawn at random; all of them if not given.",
    )

    store: Store | None = option(
        default=None,
        doc="Where rests what no step needs: `cpu` moves it off the device, `bfloat16` keeps precisions in 16 bits. By default "
        "all stays with the weights, as exact as they are.",
    )

    def at_rest(self, **tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Parts of a state as `store` says. Means are never rounded: the weights are compared with them."""
        if self.store == "cpu":
            moved = {
                key: {name: one.cpu() for name, one in part.items()} for key, part in tensors.items() if key in RESTING
            }
            return {**tensors, **moved}
        if self.store == "bfloat16" and "precision" in tensors:
            tensors["precision"] = {name: one.bfloat16() for name, one in tensors["precision"].items()}
        return tensors

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fisher_options = FisherOptions(self.fisher, self.fisher_batch, self.fisher_dropout, self.fisher_samples)

    @classmethod
    def settings(cls, **given: Any) -> dict[str, Any]:
        """As declared; but the dropout of a preset belongs to the preset's own Fisher kind."""
        chosen = super().settings(**given)
        if given.get("fisher") not in (None, "batched") and given.get("fisher_dropout") is None:
            chosen["fisher_dropout"] = False
        return chosen


def checked_weight(what: str, value: object) -> float:
    """A finite number ≥ 0, or an error that says what was given."""
    return float(option(doc="", at_least=0).checked(what, value, float))
