"""A benchmark of real digits that takes a tenth of a second."""

from __future__ import annotations

from pathlib import Path

from afec.lab import Benchmark, RunConfig, resolve
from afec.lab.spec import parse_benchmark

TEXT = """
description = "real digits, quickly"

[stream]
name = "digits"
tasks = 5
validation = 0.05
test = 0.85

[net]
name = "digits"
channels = 4
features = 8

[training]
batch_size = 16
lr = 1e-2
max_epochs = 2
patience = 1

[method.ewc]
strength = 10

[method.mas]
strength = 1

[method.si]
strength = 1

[method.ags-cl]
strength = 20
mu = 2

[method.progress-compress]
strength = 5

[method.afec]
forgetting = 1

[method.prior]
strength = 0.1

[method."mas+afec".afec]
forgetting = 0.5

[variant.long]
description = "longer"
training = { max_epochs = 4 }

[scale.three]
description = "three tasks"
stream = { sizes = [2, 2, 2] }

[scale.tiny]
description = "shorter"
stream = { sizes = [2, 3] }
training = { max_epochs = 1 }
"""


def quick() -> Benchmark:
    """The benchmark as an object."""
    return parse_benchmark(TEXT, "quick", "quick.toml")


def quick_config(method: str, scale: str = "full", /, **sections: dict[str, object]) -> RunConfig:
    """One row of it."""
    return resolve(quick(), method, scale, sections)


def quick_file(folder: Path, text: str = TEXT) -> str:
    """The benchmark as a file, for the command line."""
    file = folder / "quick.toml"
    file.write_text(text)
    return str(file)
