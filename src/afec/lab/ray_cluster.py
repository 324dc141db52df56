"""A connection to a Ray cluster, or a cluster of this machine that is started and stopped again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from socket import create_connection
from typing import Any

from afec.lab.directory import RunError
from afec.lab.gpus import available_cores
from afec.lab.job import Job
from afec.lab.plan import check_runnable
from afec.lab.ray_pool import RayPool, Resources
from afec.lab.spec import SpecError

__all__ = ["RayCluster", "check_ray"]

OBJECT_STORE = 100 * 2**20  # of a local cluster: what goes through it is a run directory at a time
CONNECT_SECONDS = 10.0


def check_ray() -> Any:
    """Ray itself; raises where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise SpecError(f"--pool ray needs Ray ({error}): pip install 'afec[ray]', or leave --pool out") from error
    return ray


class RayCluster:
    """A connection to a Ray cluster, which makes a pool for each study; without an address a cluster on this machine.

    Args:
        address: of a running cluster, `auto` for the one of this machine; None starts one, and stops it at the end. A process
            that is connected already, such as a notebook, stays so: its cluster is taken if it is that of the address.
        workers: the most runs at once; 0: as many as the cluster has room for.
        resources: what each run reserves.
        ship: whether run directories are shipped home; by default where a node does not see them.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int = 0,
        resources: Resources | None = None,
        *,
        ship: bool | None = None,
    ) -> None:
        self.ray = check_ray()
        self.address, self.workers, self.resources, self.ship = address, workers, resources or Resources(), ship
        self.connected = False

    def __str__(self) -> str:
        return f"the Ray cluster at {self.address}" if self.address else "a Ray cluster of this machine"

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.connected:
            self.ray.shutdown()
            self.connected = False

    def __call__(self, jobs: Sequence[Job], root: Path) -> RayPool:
        """A pool for these jobs."""
        self.connect()
        unique = list({(job.config.benchmark, job.config.hash): job for job in jobs}.values())
        check = partial(check_runnable, unique)
        return RayPool(self.ray, self.resources, self.workers, root=root, check=check, ship=self.ship)

    def connect(self) -> None:
        """Connect, or start a cluster; once."""
        if self.connected or self._is_connected_by_others():
            return
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address is None:
            cores = available_cores()
            cpus = max(1, math.ceil(self.workers * self.resources.cpus)) if self.workers else cores
            quiet |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray's own future
            try:
                host, _, port = (self.address or "").rpartition(":")
                if port.isdecimal() and "/" not in host:  # Ray itself tries for minutes
                    create_connection((host, int(port)), CONNECT_SECONDS).close()
                self.ray.init(address=self.address or "local", **quiet)
            except Exception as error:  # Ray raises that very class where a machine is too busy to start in time
                reason = (str(error).strip() or repr(error)).splitlines()[0]
                if self.address is None:
                    raise RunError(f"no Ray cluster could be started on this machine ({reason})") from error
                raise RunError(
                    f"there is no Ray cluster at {self.address} ({reason}); start one with `ray start --head`, or leave "
                    "--address out and one is started on this machine"
                ) from error
        self.connected = True

    def _is_connected_by_others(self) -> bool:
        if not self.ray.is_initialized():
            return False
        here = self.ray.get_runtime_context().gcs_address
        if self.address in ("auto", here):
            return True
        wanted = f"the one at {self.address}" if self.address else "a cluster of this machine"
        raise RunError(
            f"this process is connected to the Ray cluster at {here}, and {wanted} was asked for; give --address {here}, or "
            "call ray.shutdown() first"
        )
