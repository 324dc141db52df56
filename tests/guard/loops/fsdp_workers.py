"""What each of two FSDP2 processes does; the results go to files that the test reads."""

from __future__ import annotations

import datetime

import torch
from torch import distributed, nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import afec
from two_tasks import clones, data, micro_batches, net, outcome, plain_loss

WORLD, BATCH = 2, 8


def guard_of(fisher="batched", **options):
    own = {"fisher": fisher, "fisher_batch": 6}
    expand = {"epochs": 4, "optimizer": lambda params: optim.SGD(params, 0.5), **options}
    return afec.EWC(30.0, **own) + afec.AFEC(4.0, **expand, **own)


def loader(number, processes):
    dataset = TensorDataset(*data(number))
    sampler = DistributedSampler(dataset, shuffle=False) if processes > 1 else None
    return DataLoader(dataset, BATCH // processes, sampler=sampler)


def two_tasks(model, processes, how="plain", guard=None, **options):
    """Both tasks, and what is known on the way: of weights and states the parts that this process holds."""
    guard, found = guard or guard_of(**options), {}
    for number in (1, 2):
        optimizer, source = optim.SGD(model.parameters(), 0.1), loader(number, processes)
        with guard.learning(model, optimizer, source, nn.CrossEntropyLoss()) as task:
            if number == 2:
                found["f_e"] = clones(guard.state_dict()["task_states"]["afec"]["precision"])
                found["theta_e"] = clones(guard.state_dict()["task_states"]["afec"]["mean"])
            for epoch in range(3):
                micro_batches(model, optimizer, source, 2, task.pull if how == "pull" else None)
                if number == 2 and epoch == 1:
                    found["penalty"] = task.penalty()
                    found["penalties"] = torch.stack([task.penalties()[kind] for kind in ("old", "forgetting")])
                    found["middle"] = (guard.state_dict(), held(model))
            with torch.no_grad():
                model(data(number)[0])  # as people do: gathered weights stay in the model after it
        state = guard.state_dict()["states"]["ewc"]
        found[f"mean {number}"], found[f"fisher {number}"] = clones(state["mean"]), clones(state["precision"])
    found["kept"] = clones(guard.state_dict()["states"]["afec"].get("kept", {}))
    found["end"] = held(model)
    return found


def held(model):
    """Copies of the parts that this process holds."""
    named = [(name, weight.detach()) for name, weight in model.named_parameters()]
    return {name: (one.to_local() if hasattr(one, "to_local") else one).clone() for name, one in named}


def resumed(model, middle):
    """The last epoch of the second task again, from what was saved before it."""
    state, weights = middle
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.to_local().copy_(weights[name])
    guard = guard_of()
    guard.load_state_dict(state)
    optimizer, source = optim.SGD(model.parameters(), 0.1), loader(2, WORLD)
    with guard.learning(model, optimizer, source, nn.CrossEntropyLoss()):
        micro_batches(model, optimizer, source, 2)
    return {"end": held(model), "fisher 2": clones(guard.state_dict()["states"]["ewc"]["precision"])}


def sharded_net(mesh):
    torch.manual_seed(0)
    model = net()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def moved_behind(mesh):
    """A weight that is written to without an optimiser's step is noticed on shards as well."""

    def learn():
        model = sharded_net(mesh)
        for number in (1, 2):
            with guard_of().learning(model, optim.SGD(model.parameters(), 0.1), data(number), nn.CrossEntropyLoss()):
                with torch.no_grad():
                    model[0].weight.mul_(0.5)
                plain_loss(model, data(number)).backward()

    return outcome(learn)


def refusals(mesh):
    """What each of these says on a sharded model."""
    batch, loss_fn = data(1), nn.CrossEntropyLoss()

    def begin(guard):
        return outcome(lambda: guard.begin(sharded_net(mesh), None, batch, loss_fn))

    found = {kind: begin(afec.EWC(1.0, fisher=kind)) for kind in ("auto", "exact", "sample", "empirical", "reversed")}
    found |= {name: begin(getattr(afec, name)(1.0)) for name in ("MAS", "SI", "RWALK")}
    found["strength"] = begin(afec.EWC("auto", fisher="batched"))
    found["check"] = outcome(lambda: guard_of().check(sharded_net(mesh), None, batch, loss_fn))
    model = sharded_net(init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("replicate", "shard")))
    found["two dimensions"] = outcome(lambda: guard_of().begin(model, None, batch, loss_fn))
    return found


def work(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"file://{folder}/meet", world_size=WORLD, rank=rank, timeout=datetime.timedelta(seconds=60)
    )
    mesh = init_device_mesh("cpu", (WORLD,))
    found = {how: two_tasks(sharded_net(mesh), WORLD, how) for how in ("plain", "pull")}
    found["main"] = two_tasks(sharded_net(mesh), WORLD, expand_from="main")
    found["bfloat16"] = two_tasks(
        sharded_net(mesh),
        WORLD,
        guard=afec.EWC(30.0, fisher="batched", store="bfloat16")
        + afec.AFEC(4.0, epochs=4, fisher="batched", store="bfloat16"),
    )
    found["resumed"] = resumed(sharded_net(mesh), found["plain"]["middle"])
    found["moved"] = moved_behind(mesh)
    found["refusals"] = refusals(mesh)
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()
