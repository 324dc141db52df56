"""What each of two DDP processes does; the results go to files that the test reads."""

from __future__ import annotations

import datetime

import torch
from torch import distributed, nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import afec
from two_tasks import build, clones, data, micro_batches, net, outcome, values

WORLD = 2


def share(tensors):
    dataset = TensorDataset(*tensors)
    return DataLoader(dataset, 4, sampler=DistributedSampler(dataset, shuffle=False))


def two_tasks(rank, how):
    torch.manual_seed(0)
    model = net()
    wrapped, guard, found = (
        DistributedDataParallel(model, gradient_as_bucket_view=how == "views"),
        build("ewc+afec"),
        {},
    )
    torch.manual_seed(100 + rank)  # as people do, for another dropout in each process
    for number in (1, 2):
        optimizer, source = optim.SGD(wrapped.parameters(), 0.1), share(data(number))
        found[f"start {number}"] = values(model)
        with guard.learning(wrapped, optimizer, source, nn.CrossEntropyLoss()) as task:
            if number == 2:
                found["theta_e"] = clones(guard.state_dict()["task_states"]["afec"]["mean"])
                found["f_e"] = clones(guard.state_dict()["task_states"]["afec"]["precision"])
            pull = task.pull if how == "pull" else None  # every time, with a reduction in between
            for _ in range(3):
                micro_batches(wrapped, optimizer, source, 4, pull, set_to_none=how != "views")
        state = guard.state_dict()["states"]["ewc"]
        found[f"mean {number}"], found[f"fisher {number}"] = clones(state["mean"]), clones(state["precision"])
    found["end"] = values(model)
    return found


def paths(rank, how):
    """What SI and MAS remember, of steps that add up four micro-batches, clipped together with the pull."""
    torch.manual_seed(0)
    model = net()
    wrapped, guard = DistributedDataParallel(model), afec.SI(5.0) + afec.MAS(0.1)

    def clip():
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)

    for number in (1, 2):
        optimizer, source = optim.SGD(wrapped.parameters(), 0.1), share(data(number))
        with guard.learning(wrapped, optimizer, source, nn.CrossEntropyLoss()) as task:
            with_pull = {"pull": task.pull, "before_step": clip} if how == "pull" else {}
            for _ in range(3):
                micro_batches(wrapped, optimizer, source, 4, **with_pull)
    states = guard.state_dict()["states"]
    return {name: clones(states[name]["precision"]) for name in ("si", "mas")}


def diverges(rank):
    """θ_e's loss overflows in the first process, which alone trains it."""
    guard = afec.EWC(1.0) + afec.AFEC(1.0, epochs=3, optimizer=lambda params: optim.SGD(params, 1e300))
    return enter_second_task(guard, lambda number: share(data(number)))


def disagrees(rank):
    """Each process has its own data, and θ_e of the first one is worse than nothing for the other."""
    guard = afec.EWC(1.0) + afec.AFEC(1.0, epochs=20, optimizer=lambda params: optim.SGD(params, 0.5))

    def own(number):
        x, y = data(number)
        return x, (y + rank) % 3

    return enter_second_task(guard, own)


def enter_second_task(guard, source):
    torch.manual_seed(0)
    model = DistributedDataParallel(net())
    for number in (1, 2):
        with guard.learning(model, optim.SGD(model.parameters(), 0.1), source(number), nn.CrossEntropyLoss()):
            pass


def work(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"file://{folder}/meet", world_size=WORLD, rank=rank, timeout=datetime.timedelta(seconds=30)
    )
    found = {how: two_tasks(rank, how) for how in ("plain", "pull", "views")}
    found["paths"] = {how: paths(rank, how) for how in ("plain", "pull")}
    found["diverges"] = outcome(lambda: diverges(rank))
    found["disagrees"] = outcome(lambda: disagrees(rank))
    torch.save(found, f"{folder}/{rank}.pt")
