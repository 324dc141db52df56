"""The house is tidy: imports point one way, and the public names are there."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import afec

SOURCE = Path(afec.__file__).parent
# A room imports only rooms before it.
ROOMS = [
    "files",
    "naming",
    "randomness",
    "progress",
    "gaussian",
    "fisher",
    "guard",
    "data",
    "nets",
    "strategy",
    "methods",
    "streams",
    "learner",
    "metrics",
    "testing",
    "lab",
    "report",
    "cli",
]


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("afec."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("afec."))
    return found


def test_every_room_is_known():
    names = {path.stem if path.is_file() else path.name for path in SOURCE.iterdir() if not path.name.startswith("_")}
    assert names - {"py.typed", "py", "benchmarks"} == set(ROOMS)


def test_imports_point_one_way():
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room in ROOMS:
            for other in imported_rooms(path):
                assert ROOMS.index(other) <= ROOMS.index(room), f"{path.relative_to(SOURCE)} imports {other}"


def test_public_names_exist():
    assert all(hasattr(afec, name) for name in afec.__all__)


def test_everything_in_the_package_is_in_its_wheel():
    """Templates, benchmarks, the paper's numbers: a user without the checkout has them because they are declared."""
    declared = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    kept = {file for pattern in declared["afec"] for file in SOURCE.glob(pattern)}
    every = {file for file in SOURCE.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    assert {file for file in every if file.suffix != ".py"} == kept
    assert all((file.parent / "__init__.py").is_file() for file in every if file.suffix == ".py")
