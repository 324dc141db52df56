"""Where runs are executed and logged, as the command line says it: processes of this machine, or a Ray cluster."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer

if TYPE_CHECKING:
    from afec.lab import Place
    from afec.lab.engine import MakePool

__all__ = [
    "Address", "Board", "Cpus", "Gpus", "PoolName", "Runs", "RunsFolder", "Ship", "Wandb", "Workers", "opened", "place_of",
    "planned",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")

RUNS = "Where the run directories are."
Runs = Annotated[Path, typer.Argument(help=RUNS)]
RunsFolder = Annotated[Path, typer.Option("--runs", help=RUNS)]
Workers = Annotated[
    int, typer.Option(min=0, help="Processes of one thread each; 0: one per core, or one per GPU with --device cuda.")
]
Board = Annotated[
    Path | None,
    typer.Option(help="Log for TensorBoard under this directory as well; what is in RUNS stays the truth."),
]
Wandb = Annotated[
    str | None,
    typer.Option(
        metavar="PROJECT",
        help="Log every finished run to this project of Weights & Biases as well; WANDB_MODE=offline needs no network.",
    ),
]
PoolName = Annotated[str, typer.Option("--pool", help="Where to run: local (processes of this machine) or ray.")]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of a running Ray cluster, or auto; without it one is started on this machine and stopped again."
    ),
]
Cpus = Annotated[
    float | None,
    typer.Option(min=0, help="With --pool ray: CPUs that a run reserves, 1 by default; it uses one thread."),
]
Gpus = Annotated[
    float | None,
    typer.Option(min=0, help="With --pool ray: GPUs that a run reserves; 1 by default with --device cuda."),
]
Ship = Annotated[
    bool | None,
    typer.Option(
        "--ship/--no-ship",
        help="With --pool ray: send run directories home from the nodes; by default where a node does not see RUNS.",
        show_default=False,
    ),
]


def place_of(pool: str, data: Path | None, device: str | None = None) -> Place:
    """Device and data directory; on a cluster each node has a data directory of its own, unless one is given."""
    from afec.lab import Place

    if pool == "ray":
        return Place(device, None if data is None else data.expanduser().absolute())
    from afec.data.root import data_root

    return Place(device, data_root(data).absolute())


def planned(pool: str, plan: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
    """What `plan` returns. For a cluster it is called in a process of its own: what drives one for days holds no PyTorch."""
    if pool != "ray" or "torch" in sys.modules:
        return plan(*arguments, **options)
    with ProcessPoolExecutor(1, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as other:
        return other.submit(plan, *arguments, **options).result()


@contextmanager
def opened(
    pool: str,
    address: str | None,
    cpus: float | None,
    gpus: float | None,
    ship: bool | None,
    workers: int,
    runs: Path,
    device: str | None = None,
) -> Iterator[MakePool | None]:
    """What makes the pools of a command; None is processes of this machine. A cluster is left, or stopped, at the end."""
    from afec.lab import SpecError
    from afec.naming import unknown

    if pool not in ("local", "ray"):
        raise SpecError(f"--pool {pool}: {unknown('pool', pool, ['local', 'ray'])}")
    if _several_of_torchrun():
        if pool != "local":
            raise SpecError("torchrun runs one run at a time in all its processes; leave --pool out, or torchrun")
        with _torchrun(device) as made:
            yield made
        return
    if pool == "local":
        given = {"--address": address, "--cpus": cpus, "--gpus": gpus, "--ship": ship}
        for option, value in given.items():
            if value is not None:
                raise SpecError(f"{option} is for a cluster; give --pool ray with it, or leave it out")
        yield None
        return
    from afec.lab.estimate import memory_of
    from afec.lab.ray_cluster import RayCluster
    from afec.lab.ray_pool import Resources

    needs_gpu = device is not None and device.startswith("cuda")
    resources = Resources(1.0 if cpus is None else cpus, float(needs_gpu) if gpus is None else gpus, memory_of(runs))
    with RayCluster(address, workers, resources, ship=ship) as cluster:
        yield cluster


def _several_of_torchrun() -> bool:
    """Whether torchrun has started several processes for this command. Elsewhere no PyTorch is imported to find out."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    from afec.lab.torchrun import processes_of_torchrun

    return processes_of_torchrun() > 1


@contextmanager
def _torchrun(device: str | None) -> Iterator[MakePool]:
    """The group of torchrun's processes; all but the first follow it, and leave when it has ended."""
    from afec.lab.torchrun import GroupPool, follow, joined

    with joined("nccl" if device is not None and device.startswith("cuda") else "gloo") as group:
        if group.rank == 0:
            yield GroupPool(group)
            group.agreed(None)
            return
        follow(group)
    raise typer.Exit(0)
