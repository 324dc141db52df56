"""The house is tidy: imports point one way, and the public names are there."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import afec
from afec.experiments import EXPERIMENTS, find_experiment
from afec.methods.expression import FINETUNE, METHODS

SOURCE = Path(afec.__file__).parent
# A room imports only rooms before it.
ROOMS = [
    "whole_files",
    "files",
    "stopping",
    "source",
    "naming",
    "randomness",
    "progress",
    "parallel",
    "gaussian",
    "posterior",
    "fisher",
    "guard",
    "data",
    "nets",
    "strategy",
    "methods",
    "streams",
    "learner",
    "metrics",
    "rl",
    "testing",
    "experiments",
    "lab",
    "report",
    "integrations",
    "cli",
]
LAB_IMPORTS = {"files", "whole_files", "naming", "randomness", "parallel", "data.root", "metrics", "experiments", "lab"}
"""All that lab may know of the house: what is run is behind `experiments`."""


def test_tests_lie_in_the_rooms_that_they_are_of():
    """A room that is a folder has its tests in a folder of that name; those of one file, and of the whole house, are beside."""
    folders = {path.name for path in Path(__file__).parent.iterdir() if path.is_dir() and path.name[0] not in "_."}
    rooms = {name for name in ROOMS if (SOURCE / name).is_dir()}
    assert folders == rooms | {"golden"}
    assert all(any(Path(__file__).parent.glob(f"{room}/**/test_*.py")) for room in rooms)
    beside = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert set(ROOMS) - rooms <= beside


def imported(path: Path) -> set[str]:
    """What a file imports of ours, as `room` or `room.file`; also inside functions and for types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "afec":
            found.update(f"afec.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {".".join(name.split(".")[1:3]) for name in found if name.startswith("afec.")}


def imported_rooms(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


def test_every_room_is_known():
    names = {path.stem if path.is_file() else path.name for path in SOURCE.iterdir() if not path.name.startswith("_")}
    assert names - {"py.typed", "py", "benchmarks", "studies"} == set(ROOMS)


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room in ROOMS:
            for other in imported_rooms(path):
                assert ROOMS.index(other) <= ROOMS.index(room), f"{path.relative_to(SOURCE)} imports {other}"


LAB = [pytest.param(file, id=file.name) for file in sorted((SOURCE / "lab").glob("*.py"))]


@pytest.mark.parametrize("path", LAB)
def test_lab_knows_experiments_and_nothing_that_they_are_made_of(path):
    other = {name for name in imported(path) if not {name, name.split(".")[0]} & LAB_IMPORTS}
    assert not other, f"lab/{path.name} imports {sorted(other)}; it may import {sorted(LAB_IMPORTS)}"


def names_of_methods() -> set[str]:
    references = {name for kind in map(find_experiment, EXPERIMENTS) for name in kind.references}
    assert {"ewc", "afec"} <= set(METHODS)
    assert {"joint", "scratch"} <= references
    return {FINETUNE, *METHODS} | references


def constants(tree: ast.AST) -> set[object]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


@pytest.mark.parametrize("path", LAB)
def test_lab_has_no_branch_on_the_name_of_a_method(path):
    tree, package = ast.parse(path.read_text()), "afec"
    found = constants(tree) & (names_of_methods() - {package})
    for node in ast.walk(tree):  # the method AFEC is called like the package, whose name may stand there
        if isinstance(node, ast.Compare | ast.match_case) and package in constants(node):
            found.add(package)
    assert not found, f"lab/{path.name} has the names {sorted(found)}; a kind of run is a class in experiments/"


def test_public_names_exist():
    assert all(hasattr(afec, name) for name in afec.__all__)


def test_everything_in_the_package_is_in_its_wheel():
    """Templates, benchmarks, the paper's numbers: a user without the checkout has them because they are declared."""
    declared = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    kept = {file for pattern in declared["afec"] for file in SOURCE.glob(pattern)}
    every = {file for file in SOURCE.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    assert {file for file in every if file.suffix != ".py"} == kept
    assert all((file.parent / "__init__.py").is_file() for file in every if file.suffix == ".py")


def gathered(known: dict[str, Path]) -> dict[str, str]:
    """The names that the `__init__` of a room gives, each with the module that has it: importing one imports that file."""
    found = {}
    for path in SOURCE.rglob("__init__.py"):
        package = ".".join(("afec", *path.parent.relative_to(SOURCE).parts))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module in known:
                found.update({f"{package}.{alias.asname or alias.name}": node.module for alias in node.names})
    return found


def imported_files(path: Path, known: dict[str, Path], through: dict[str, str]) -> set[str]:
    """The modules of ours that a file imports, for types as well, and also where a room's `__init__` stands between."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            wholes = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(whole if whole in known else through.get(whole, node.module) for whole in wholes)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & known.keys()


def test_no_files_import_each_other_in_a_circle():
    """Typed imports included, in every room."""
    known = {
        ".".join(("afec", *path.relative_to(SOURCE).with_suffix("").parts)): path
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py"
    }
    through = gathered(known)
    assert through["afec.lab.RunDirectory"] == "afec.lab.directory"
    left = {name: imported_files(path, known, through) - {name} for name, path in known.items()}
    assert {name.split(".")[1] for name in left} >= {"guard", "lab", "learner"}
    while free := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert not left, f"a circle is among {sorted(left)}"
