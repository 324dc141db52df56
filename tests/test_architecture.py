"""docs/architecture.md is true: its picture is of the imports, and its walk is the stack of a real run."""

from __future__ import annotations

import ast
import importlib.util
import re
import traceback
from pathlib import Path

import pytest

import afec
from afec.cli import main
from afec.guard import pull
from small_lab import quick_file

ROOT = Path(__file__).parent.parent
SOURCE = Path(afec.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALK = re.findall(r"^\d+\. `([\w/]+\.py)` `(\w+)`", PAGE, flags=re.M)
NAMED = [*WALK, *re.findall(r"\(`([\w/]+\.py)` `(\w+)`\)", PAGE)]
IN_A_STEP = 4


@pytest.fixture(scope="module")
def rooms():
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "figures" / "rooms.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_the_rooms_is_that_of_the_imports(rooms):
    drawn = (ROOT / "docs" / "rooms.svg").read_text()
    assert drawn == rooms.svg(rooms.imports()), "run `python docs/figures/rooms.py`"


def test_the_picture_leaves_out_what_another_line_says(rooms):
    """By hand: c imports a and b, b imports a; d imports c; e, which nobody imports, imports b."""
    edges = {"a": set(), "b": {"a"}, "c": {"a", "b"}, "d": {"c"}, "e": {"b"}}
    assert rooms.reduced(edges) == {"a": set(), "b": {"a"}, "c": {"b"}, "d": {"c"}, "e": {"b"}}
    assert rooms.rows(edges) == [["a"], ["b"], ["c", "e"], ["d"]]
    text = rooms.svg(edges)
    assert "c imports b" in text
    assert "c imports a" not in text


def test_every_room_is_described():
    table = PAGE[PAGE.index("| room |") : PAGE.index("`lab` knows")]
    rooms = {path.stem for path in SOURCE.iterdir() if not path.name.startswith(("_", "py."))}
    assert set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line))) == (
        rooms - {"benchmarks", "studies"}
    )


@pytest.mark.parametrize(("file", "function"), NAMED)
def test_what_the_page_names_is_there(file, function):
    tree = ast.parse((SOURCE / file).read_text())
    assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_walk_is_short():
    assert len(WALK) <= 27
    assert [file.split("/")[0] for file, _ in WALK[-IN_A_STEP - 1 :]] == ["learner", *["guard"] * IN_A_STEP]


def test_the_walk_is_the_stack_of_a_real_run(in_process, tmp_path, monkeypatch):
    """Taken where the pull is added in the training of the last task; worker processes are left out."""
    stacks, real = [], pull.add_pull

    def spied(*arguments):
        stacks.append(traceback.extract_stack()[:-1])
        return real(*arguments)

    monkeypatch.setattr(pull, "add_pull", spied)
    command = ["run", quick_file(tmp_path), "--scale", "tiny", "--method", "ewc+afec", "--seeds", "1"]
    assert main([*command, "--runs", str(tmp_path / "runs")]) == 0
    ours = [(Path(frame.filename), frame.name) for frame in stacks[-1] if Path(frame.filename).is_relative_to(SOURCE)]
    found = [(path.relative_to(SOURCE).as_posix(), name) for path, name in ours]
    assert [*found, ("guard/gradients.py", "add_pull")] == [step for step in WALK if step[0] != "lab/local_pool.py"]
