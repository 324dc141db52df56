"""Kill nodes of a real Ray cluster in the middle of a study, again and again, and compare every byte of its scores.

    python bench/ray_kills.py --kills 10
    python bench/ray_kills.py --kills 3 --ship      # run directories are shipped home
    python bench/ray_kills.py --head                # the head is killed, and started again
    python bench/ray_kills.py --drivers 2           # two commands at once on one study

Both nodes are on this machine, with one CPU each. The one that is killed (SIGKILL, all its processes) is started again.
A command that was connected through it ends with it, and is started again, too: `codes` has the exit codes. The moments are
drawn from --seed. What is printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from afec.lab import find_runs, plan
from afec.lab.run import run

METHODS = ["finetune", "ewc", "ewc+afec", "si"]
SETS = [  # a few seconds a run
    *("stream.sizes=[2,2,2]", "stream.validation=0.05", "stream.test=0.85", "net.channels=4", "net.features=8"),
    *("training.batch_size=16", "training.lr=0.01", "training.max_epochs=25", "training.patience=off"),
    *("method.ewc.strength=10", "method.afec.forgetting=1", "method.si.strength=1"),
]


def scores(root: Path) -> dict[str, bytes]:
    return {str(d.path.relative_to(root)): (d.path / "scores.csv").read_bytes() for d in find_runs(root) if d.done}


class Nodes:
    """A head and a second node, as `ray start` starts them; one CPU each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.options = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
        self.make = Cluster
        self.begin()

    def begin(self) -> None:
        """Start both."""
        self.cluster = self.make(initialize_head=True, head_node_args=self.options)
        self.second = None
        self.add()

    @property
    def address(self) -> str:
        """What `--address` takes."""
        return str(self.cluster.address)

    def add(self) -> None:
        """Start the second node."""
        options = {key: value for key, value in self.options.items() if key != "include_dashboard"}
        self.second = self.cluster.add_node(**options)

    def kill_second(self) -> None:
        """All its processes, by SIGKILL."""
        self.cluster.remove_node(self.second, allow_graceful=False)

    def kill_all(self) -> None:
        """The head as well."""
        for node in list(self.cluster.list_all_nodes()):
            self.cluster.remove_node(node, allow_graceful=False)


def command(seeds: int, root: Path, address: str, ship: bool) -> list[str]:
    ray = ["--pool", "ray", "--address", address, *(["--ship"] if ship else [])]
    study = ["run", "digits", "--method", *METHODS, "--seeds", str(seeds), "--runs", str(root), "--set", *SETS]
    return [sys.executable, "-m", "afec.cli", *study, *ray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0, help="how often the second node is killed")
    parser.add_argument("--seed", type=int, default=0, help="what the moments are drawn from")
    parser.add_argument("--seeds", type=int, default=2, help="the seeds of the study, at least")
    parser.add_argument("--every", type=float, default=8.0, help="the longest time between two kills, in seconds")
    parser.add_argument("--ship", action="store_true", help="run directories are shipped home")
    parser.add_argument("--head", action="store_true", help="the whole cluster is killed once, and started again")
    parser.add_argument("--drivers", type=int, default=1, help="how many commands at once")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    draw, folder = random.Random(arguments.seed), Path(tempfile.mkdtemp())
    root, seeds = folder / "runs", arguments.seeds
    nodes, report = Nodes(), {"kills": 0, "hits": 0, "lost": 0, "codes": [], "again": 0}

    def start() -> list[subprocess.Popen[str]]:
        words = command(seeds, root, nodes.address, arguments.ship)
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return [subprocess.Popen(words, **options) for _ in range(arguments.drivers)]

    def end(drivers: list[subprocess.Popen[str]]) -> None:
        for driver in drivers:
            out, _ = driver.communicate()
            report["codes"].append(driver.returncode)
            report["again"] += out.count("waits for another place")
            if driver.returncode:
                report["said"] = out[-1500:]

    def finished() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in root.rglob("DONE")}

    try:
        drivers = start()
        while report["kills"] < arguments.kills or arguments.head:
            time.sleep(draw.uniform(0.5, arguments.every))
            if all(driver.poll() is not None for driver in drivers):
                end(drivers)
                seeds += 0 if report["codes"][-1] else arguments.seeds  # a driver ends with the node that it was on
                drivers = start()
                continue
            begun = len(list(root.rglob("lock-holder"))) if root.exists() else 0
            if begun == 0:
                continue
            before = finished()
            if arguments.head:
                nodes.kill_all()
                end(drivers)
                nodes.begin()
                drivers = start()
                arguments.head = False
            else:
                nodes.kill_second()
                report["kills"] += 1
                report["hits"] += begun > len(before)
                nodes.add()
                print(f"{report['kills']} of {arguments.kills} kills, {len(before)} runs done", file=sys.stderr)
            report["lost"] += sum(finished().get(file) != stamp for file, stamp in before.items())
        end(drivers)
        while report["codes"][-1] < 0 or (
            report["codes"][-1] == 1 and len(report["codes"]) < 20
        ):  # the same command again
            drivers = start()
            end(drivers)
    finally:
        nodes.cluster.shutdown()
    jobs = plan(["digits"], METHODS, range(seeds), sets=SETS)
    for job in jobs:
        run(job.config, job.seed, folder / "whole")
    report["runs"], report["identical"] = len(jobs), scores(root) == scores(folder / "whole")
    report["done"] = sum(found.done for found in find_runs(root))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
