"""No test draws from an unseeded source, so that one that fails fails again.

Allowed are generators with a seed, and inside of functions the ones that everybody shares (`torch.rand`, `np.random.rand`,
`random.random`): conftest.py seeds these before each test and before each fixture that several tests share. While a file is
imported nobody has seeded them.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

TESTS = Path(__file__).parent
ENTROPY = ("os.urandom", "os.getrandom", "secrets", "uuid.uuid1", "uuid.uuid4", "random.SystemRandom", "torch.seed")
"""There is no seed for these."""
NEED_A_SEED = {
    *("random.Random", "random.seed", "numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.seed"),
    *("numpy.random.SeedSequence", "numpy.random.PCG64", "numpy.random.MT19937", "numpy.random.Philox"),
}
LAYERS = ("Linear", "Bilinear", "Conv", "Embedding", "RNN", "LSTM", "GRU", "MultiheadAttention", "Transformer")
LIKE = {"rand_like", "randn_like", "randint_like"}
DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", *LIKE}
METHODS = {"normal_", "uniform_", "random_", "bernoulli_", "exponential_", "multinomial", "bernoulli"}
DRAW_NOTHING = {"getstate", "setstate", "get_state", "set_state", "Random", "SystemRandom"}


def faults(source: str) -> list[str]:
    """Each call in a file that draws from an unseeded source, by its line; scripts in strings are looked through as well."""
    tree = ast.parse(source)
    names = _imported(tree)
    found = [f"line {call.lineno}: {said}" for call in _calls(tree) if (said := _unseeded(call, names))]
    found += [
        f"line {call.lineno}: {_name(call.func, names)} at import: give it a generator with a seed, or move it into a function"
        for call in _at_import(tree)
        if _shared(call, names)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            try:
                inner = ast.parse(node.value)
            except SyntaxError:  # words
                continue
            said = [_unseeded(call, _imported(inner)) for call in _calls(inner)]
            found += [f"line {node.lineno}, in a script: {one}" for one in said if one]
    return found


def _imported(tree: ast.AST) -> dict[str, str]:
    """What each name stands for: `np` for numpy, `urandom` for os.urandom."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _at_import(node: ast.AST) -> Iterator[ast.Call]:
    """The calls outside of all functions and lambdas; decorators and defaults of arguments are outside."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Lambda):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for outside in (*child.decorator_list, child.args):
                if isinstance(outside, ast.Call):
                    yield outside
                yield from _at_import(outside)
            continue
        if isinstance(child, ast.Call):
            yield child
        yield from _at_import(child)


def _name(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of what is called, `numpy.random.rand`; of a method of something, `.normal_`."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        before = _name(node.value, names)
        return f"{before}.{node.attr}" if before and not before.startswith(".") else f".{node.attr}"
    return ""


def _unseeded(call: ast.Call, names: dict[str, str]) -> str:
    name = _name(call.func, names)
    if any(name == one or name.startswith(f"{one}.") for one in ENTROPY):
        return f"{name} has no seed: take random.Random(0) or np.random.default_rng(0)"
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name in NEED_A_SEED and (not given or (isinstance(given[0], ast.Constant) and given[0].value is None)):
        return f"{name} without a seed: give it one"
    if any(keyword.arg == "derandomize" and ast.unparse(keyword.value) == "False" for keyword in call.keywords):
        return "hypothesis with other examples each time: leave derandomize as conftest.py sets it"
    return ""


def _shared(call: ast.Call, names: dict[str, str]) -> bool:
    """Whether it draws from a generator that everybody shares."""
    name = _name(call.func, names)
    room, _, last = name.rpartition(".")
    if any(keyword.arg == "generator" for keyword in call.keywords):
        return False
    if room in ("random", "numpy.random"):
        return last not in DRAW_NOTHING and name not in NEED_A_SEED and not last[0].isupper()
    if room == "torch":
        return last in DRAWS
    return (room == "torch.nn" and last.startswith(LAYERS)) or room == "torch.nn.init" or (not room and last in METHODS)


FILES = sorted(file for file in TESTS.rglob("*.py") if file != Path(__file__))  # this one has scripts that are wrong


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(TESTS)) for file in FILES])
def test_no_test_draws_from_an_unseeded_source(file):
    assert faults(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\ndef f(): return os.urandom(3)",
        "from os import urandom as bytes_of\ndef f(): return bytes_of(3)",
        "import secrets\ndef f(): return secrets.token_hex()",
        "import uuid\ndef f(): return uuid.uuid4().hex",
        "import random\ndef f(): return random.SystemRandom().random()",
        "import random\ndef f(): return random.Random().random()",
        "import random\ndef f(): random.seed()",
        "import numpy as np\ndef f(): return np.random.default_rng().normal()",
        "from numpy.random import default_rng\ndef f(): return default_rng(None).normal()",
        "import numpy as np\ndef f(): np.random.RandomState(seed=None)",
        "import torch\ndef f(): torch.seed()",
        "import random\nX = random.random()",
        "import numpy as np\nX = [np.random.rand(3)]",
        "import torch\nX = torch.rand(3)",
        "import torch\nX = torch.empty(3).normal_()",
        "from torch import nn\nX = nn.Sequential(nn.Conv2d(1, 2, 3))",
        "import torch\nclass A:\n    x = torch.randn(2)",
        "import torch\ndef f(x=torch.randn(2)): pass",
        "import torch, pytest\n@pytest.mark.parametrize('x', [torch.randn(2)])\ndef test(x): pass",
        "from hypothesis import settings\n@settings(derandomize=False)\ndef test(): pass",
        "SCRIPT = 'import os\\nprint(os.urandom(2))'",
    ],
)
def test_an_unseeded_source_is_found(source):
    assert len(faults(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import random\nX = random.Random(0).random()",
        "import numpy as np\nX = np.random.default_rng(0).normal()",
        "import numpy as np\nX = np.random.default_rng(seed=3).normal()",
        "import torch\nX = torch.rand(3, generator=torch.Generator().manual_seed(0))",
        "import torch\ndef test(): return torch.rand(3).normal_()",
        "import torch\nF = lambda: torch.rand(3)",
        "import random\ndef test(): return random.random(), random.getstate()",
        "from torch import nn\nX = nn.Sequential(nn.ReLU())",
        "WORDS = 'import os.urandom? no'",
    ],
)
def test_a_seeded_source_is_none(source):
    assert faults(source) == []


@pytest.fixture(scope="module", params=[0, 1])
def drawn_by_a_shared_fixture(request):
    return torch.rand(2).tolist(), np.random.rand(), random.random()


def test_shared_fixtures_are_seeded(drawn_by_a_shared_fixture):
    assert drawn_by_a_shared_fixture == (torch.rand(2).tolist(), np.random.rand(), random.random())


def test_hypothesis_gives_the_same_examples_every_time():
    assert settings().derandomize
