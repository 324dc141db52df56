"""What experiments share in which a method of `afec.methods` learns: its settings, its grids, and records of [training]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from afec.experiments.base import Experiment, Section
from afec.experiments.grids import check_grid, has_grid, search_space
from afec.gaussian import forgetting_from_beta
from afec.methods import AFEC, Prior
from afec.methods.expression import FINETUNE, check_settings, make_method, name_of, terms_of, whole_settings
from afec.naming import did_you_mean

__all__ = ["MethodExperiment", "WithoutMethod", "training_records"]

LATER = (AFEC.name, Prior.name)
"""Methods whose strength is searched once that of the regulariser beside them is known."""


def training_records(section: Section, *kinds: Any) -> list[Any]:
    """The records (dataclasses) whose fields a [training] section names; a ValueError says what is wrong with it."""
    names = [{field.name for field in fields(kind)} for kind in kinds]
    every = set().union(*names)
    for key in section:
        if key not in every:
            raise ValueError(f"training.{key}: unknown key{did_you_mean(key, every)}")
    try:
        return [
            _adapter(kind).validate_python({key: value for key, value in section.items() if key in own})
            for kind, own in zip(kinds, names, strict=True)
        ]
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            raise ValueError(f"training: {message}") from error
        raise ValueError(f"training.{'.'.join(map(str, first['loc']))}: {message}; got {first['input']!r}") from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """What checks the records of a kind; it takes milliseconds to make."""
    return TypeAdapter(kind)


class MethodExperiment(Experiment):
    """An experiment whose rows are methods, `ewc+afec`, or `finetune`."""

    alternatives: ClassVar[Mapping[str, str]] = {"beta": "forgetting", "forgetting": "beta"}

    @classmethod
    def terms(cls, method: str) -> tuple[str, ...]:
        """The terms of the sum; `finetune` has none."""
        return terms_of(method)

    @classmethod
    def title(cls, method: str) -> str:
        """By the names of its terms, wherever they are from."""
        return name_of(method)

    @classmethod
    def complete_term(cls, term: str, settings: Section) -> Section:
        """What the term's preset says is written out."""
        check_settings(term, settings)
        return whole_settings(term, settings)

    @classmethod
    def complete_method(cls, method: str, settings: dict[str, Section]) -> tuple[str, dict[str, Section]]:
        """The sum, sorted; it is made once, so that a value that cannot be is said."""
        _, whole = super().complete_method(method, settings)
        name = "+".join(cls.terms(method)) or FINETUNE
        make_method(name, whole)
        return name, whole

    # -- tuning ---------------------------------------------------------------------------------------------------

    @classmethod
    def stages(cls, method: str, *, together: bool) -> list[tuple[str, tuple[str, ...]]]:
        """The paper's procedure: λ first, without AFEC, then λ_e with that λ kept; Prior's λ_p likewise. Or all at once."""
        terms = cls.terms(method)
        first = tuple(term for term in terms if term not in LATER) or tuple(term for term in terms if term != AFEC.name)
        if together or not first:
            return [(method, terms)]
        later = [term for term in terms if term not in first]
        stages = [("+".join(first), first)]
        for place, term in enumerate(later):
            missing = later[place + 1 :]
            stages.append(("+".join(one for one in terms if one not in missing), (term,)))
        return stages

    @classmethod
    def check_grid(cls, term: str, grid: Section) -> None:
        """Lists of numbers, and the Fisher kind that they belong to."""
        check_grid(term, grid)

    @classmethod
    def has_grid(cls, term: str, grid: Section, *, beta: bool) -> bool:
        """Whether there are values of λ, and of λ_e or β, whichever is searched."""
        return has_grid(term, grid, beta=beta)

    @classmethod
    def search_space(cls, term: str, grid: Section, settings: Section, *, beta: bool) -> dict[str, tuple[float, ...]]:
        """The grid for the Fisher kind that the run will use."""
        return search_space(term, grid, settings, beta=beta)

    @classmethod
    def searched_settings(cls, term: str, values: Mapping[str, float]) -> dict[str, float]:
        """β as the λ_e that it stands for."""
        return {
            "forgetting" if key == "beta" else key: forgetting_from_beta(value) if key == "beta" else value
            for key, value in values.items()
        }


class WithoutMethod:
    """What `joint` and `scratch` share: they are references, and no method acts in them. Comes before the experiment."""

    @classmethod
    def complete_method(cls, method: str, settings: dict[str, Section]) -> tuple[str, dict[str, Section]]:
        """The name of the reference; it has no settings."""
        return method, {}

    @classmethod
    def title(cls, method: str) -> str:
        """How tables call it."""
        return method

    @classmethod
    def terms(cls, method: str) -> tuple[str, ...]:
        """The methods that act: none."""
        return ()
