"""Learners in several processes, with what torchrun tells each of them: `several(work, folder, count)`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import afec
from afec.fisher import Problem, estimate
from afec.guard.distributed import processes_of
from afec.lab.torchrun import joined, leave, processes_of_torchrun
from afec.nets.norm import new_batch_norm
from afec.parallel import grouped
from afec.streams import digits

METHODS = {
    "finetune": None,
    "exact": lambda: afec.EWC(strength=10, fisher="exact"),
    "sample": lambda: afec.EWC(strength=10, fisher="sample"),
    "empirical": lambda: afec.EWC(strength=10, fisher="empirical"),
    "batched": lambda: afec.EWC(strength=10, fisher="batched"),
    "mas": lambda: afec.MAS(strength=1),
    "si": lambda: afec.SI(strength=1),
    "rwalk": lambda: afec.RWALK(strength=1),
    "ewc+afec": lambda: afec.EWC(strength=10) + afec.AFEC(forgetting=1),
    "interleaved": lambda: afec.EWC(strength=10) + afec.AFEC(forgetting=1, schedule="interleaved"),
}


class Net(nn.Sequential):
    out_features = 8

    def __init__(self, norm: str = "", dropout: float = 0.0) -> None:
        norms = [new_batch_norm(4, norm)] if norm else []
        first = nn.Conv2d(1, 4, 3, bias=not norm)  # before a norm a bias has no gradient but rounding
        super().__init__(
            first, *norms, nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(4 * 6 * 6, 8), nn.ReLU()
        )


def shifted(images):
    """An augmentation that draws for every image."""
    return images + 0.1 * torch.randn(len(images), 1, 1, 1)


def learned(method=None, norm="", dropout=0.0, augment=None):
    """Everything that a learner knows after two tasks: weights, what the method has measured, and losses."""
    torch.manual_seed(0)
    losses = []
    schedule = afec.Schedule(batch_size=31, lr=1e-2, max_epochs=3)
    learner = afec.Learner(
        Net(norm, dropout),
        method and method(),
        schedule=schedule,
        on_progress=lambda progress: losses.append(progress.epoch.loss),
        progress=False,
    )
    for task in digits(seed=0, sizes=[2, 3], validation=0.1, test=0.6).tasks:
        learner.learn(replace(task, augment=augment) if augment else task)
    return {"state": learner.state_dict(), "losses": losses}


def opposite():
    """F of one weight from two samples whose gradients are 1 and −1, in as many processes as there are."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    problem = Problem(model, lambda model, batch: ((model(batch[0]) - batch[1]) ** 2 / 2).mean())
    batch = (torch.ones(2, 1), torch.tensor([[-1.0], [1.0]]))
    processes = processes_of(model)
    weights = {"weight": model.weight}
    found = estimate(problem, weights, [batch], kind="empirical", chunk=1, part=processes.part)
    return processes.total(found).mean()["weight"]


def everything():
    found = {name: learned(method) for name, method in METHODS.items()}
    found["dropout"] = learned(METHODS["ewc+afec"], dropout=0.3)
    found["augment"] = learned(METHODS["ewc+afec"], augment=shifted)
    found["shared norm"] = learned(METHODS["exact"], norm="shared")
    found["norm per task"] = learned(METHODS["exact"], norm="per-task")
    found["opposite"] = opposite()
    return found


def work(rank, folder):
    """One process of a group that meets at the store of `folder`/group; the first one writes `folder`/found.pt."""
    port, count = (Path(folder) / "group").read_text().split()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": count, "TORCHELASTIC_RUN_ID": "none"}
    assert processes_of_torchrun() == int(count)
    with joined() as group, grouped(group):
        found = everything()
        if group.rank == 0:
            torch.save(found, Path(folder) / "found.pt")
        own = torch.cat([v.reshape(-1).double() for v in found["ewc+afec"]["state"]["net"].values()])
        assert group.agreed(own).equal(own)  # every process has come to the same bits
    leave(0)
