"""An option stands once: constructor, checks, repr, settings of configs and the tables in the docs read the field."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import afec
from afec.guard import Term
from afec.methods import path, regulariser
from afec.methods.expression import METHODS, check_settings, whole_settings

ROOT = Path(__file__).parents[2]


def lines_of_code(source: str) -> int:
    """Without blank lines, comments and docstrings."""
    tree = ast.parse(source)
    docs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docs |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in docs for n, line in lines)


@pytest.mark.parametrize("name", ["EWC", "MAS", "SI", "RWALK"])
def test_a_regulariser_says_how_it_measures_importance_and_little_else(name):
    method = getattr(afec, name)
    assert issubclass(method, regulariser.Regulariser)
    assert lines_of_code(Path(inspect.getfile(method)).read_text()) < 60
    own = {key for key, value in vars(method).items() if inspect.isfunction(value)}
    known = {"importance", "watched", "after_step", "cannot_measure", "end_task", "mean_over_tasks"}
    assert own <= known | {"memory", "not_on_shards"}
    assert "importance" in own


def test_lines_of_code_are_counted_as_a_reader_would():
    assert lines_of_code('"""Doc.\n\nMore."""\n\n# a comment\nx = 1\n\n\ndef f():\n    """Doc."""\n    return x\n') == 3


def written(value: object) -> str:
    return "" if value is None or value is inspect.Parameter.empty else f"`{value}`"


def table_of(method: type) -> list[str]:
    """The table of a method's options as its page has it: a preset's value where it is not the default."""
    rows = ["| option | default | `paper` | `official` | |", "|---|---|---|---|---|"]
    for name, one in method.options.items():
        presets = (written(value) if value != one.default else "" for value in (one.paper, one.official))
        rows.append(f"| `{name}` | {written(one.default)} | {' | '.join(presets)} | {one.doc} |")
    return rows


@pytest.mark.parametrize("name", METHODS)
def test_the_page_of_a_method_has_the_table_of_its_options(name):
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text()
    expected = "\n".join(table_of(METHODS[name].make))
    assert expected in page, f"docs/methods/{name}.md needs this table:\n{expected}"


@pytest.mark.parametrize("name", METHODS)
def test_constructor_docstring_and_settings_read_the_fields(name):
    method = METHODS[name].make
    assert list(inspect.signature(method).parameters) == list(method.options)
    for key, one in method.options.items():
        assert f"    {key}: {one.doc}" in method.__doc__
        assert one.doc.endswith((".", "all."))
    from_config = [key for key, one in method.options.items() if one.from_config]
    check_settings(name, dict.fromkeys(from_config, 1))
    for key in set(method.options) - set(from_config):
        with pytest.raises(ValueError, match=f"has no (setting|option) '{key}'"):
            check_settings(name, {key: 1})
    for preset in ("default", "paper", "official"):
        whole = whole_settings(name, {"preset": preset})
        assert whole == {k: v for k in from_config if (v := method.settings(preset=preset)[k]) is not None}
        assert whole["preset"] == preset


class Own(regulariser.Regulariser):
    """A method of a user's."""

    name = "own"
    share: float = afec.guard.option(default=0.5, official=1, at_least=0, at_most=1, symbol="s", doc="A share.")
    count: int = afec.guard.option(default=2, at_least=1, doc="A number.")
    switch: bool = afec.guard.option(default=False, doc="On or off.")

    def importance(self, task, task_state):
        return {name: self.share * value.abs() for name, value in task.values().items()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.5}, r"Own: share \(s\) must be in \[0, 1\]; got 1.5"),
        ({"share": "much"}, r"Own: share \(s\) must be in \[0, 1\]; got 'much'"),
        ({"share": float("nan")}, "must be in .*; got nan"),
        ({"share": True}, "must be in .*; got True"),
        ({"count": 0}, "Own: count must be an integer ≥ 1; got 0"),
        ({"count": 1.5}, "Own: count must be an integer ≥ 1; got 1.5"),
        ({"switch": 1}, "Own: switch must be True or False; got 1"),
        ({"preset": "mine"}, "preset must be one of 'default', 'paper', 'official'; got 'mine'"),
    ],
)
def test_types_and_bounds_of_fields_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Own(1.0, **options)


def test_fields_make_a_constructor():
    assert repr(Own(2, share=0)) == "Own(strength=2, share=0)"
    assert Own(1.0, preset="official").share == 1.0
    assert Own(1.0, preset="official", share=0.25, count=None).share == 0.25
    for wrong in ({}, {"strength": 1, "sahre": 1}):
        with pytest.raises(
            TypeError, match="Own: .*It takes strength, share, count, switch, tolerance, .*params, preset"
        ):
            Own(**wrong)
    with pytest.raises(TypeError, match="too many positional"):
        Own(1.0, 0.5)


def test_a_term_has_a_default_for_what_only_check_needs():
    assert not Term.preview.__qualname__.startswith("Regulariser")
    assert "preview" not in Term.__abstractmethods__
    assert not {"preview", "quadratics", "end_task", "is_off"} & regulariser.Regulariser.__abstractmethods__
    assert path.PathRegulariser.__abstractmethods__ == {"importance"}
