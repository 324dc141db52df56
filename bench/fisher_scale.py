"""By how much the λ of `batched`(20) is larger than that of `empirical`: the sum of one Fisher over the sum of the other.

    PYTHONPATH=src python bench/fisher_scale.py                          # digits
    AFEC_DATA=data PYTHONPATH=src python bench/fisher_scale.py --cifar   # the CIFAR CNN, first task of CIFAR-100-SC

Measured while the first task is learned, with dropout off in both and, as the preset `official` has it, on in `batched` alone.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from afec.fisher import Problem, estimate
from afec.nets.cnn6 import CNN6
from afec.streams import digits
from afec.streams.cifar import cifar100_sc


def ratio(problem: Problem, x: torch.Tensor, y: torch.Tensor, dropout: bool) -> float:
    weights, total = dict(problem.model[0].named_parameters()), []
    for kind in ("empirical", "batched"):
        batches = zip(x.split(20), y.split(20), strict=True)
        found = estimate(problem, weights, batches, kind=kind, train=dropout and kind == "batched").mean()
        total.append(sum(float(value.sum()) for value in found.values()))
    return total[0] / total[1]


def measure(backbone: nn.Module, features: int, task: object, epochs: int, batch: int) -> None:
    model = nn.Sequential(backbone, nn.Linear(features, task.outputs))
    x, y = task.train.inputs, task.train.targets
    x = x if task.prepare is None else task.prepare(x)
    problem = Problem(model, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(epochs + 1):
        if epoch in (0, 1, 5, 10, 20, 50, 100, epochs):
            loss = problem.loss(model.eval(), (x, y)).item()
            off, on = (ratio(problem, x, y, dropout) for dropout in (False, True))
            print(f"after {epoch:3d} epochs, loss {loss:.4f}: dropout off {off:5.1f} ×, on {on:5.1f} ×", flush=True)
        model.train()
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            problem.loss(model, (x[rows], y[rows])).backward()
            optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", action="store_true")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    if given.cifar:
        measure(CNN6(), CNN6.out_features, cifar100_sc(seed=given.seed).tasks[0], given.epochs, 256)
    else:
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 32), nn.ReLU())
        measure(net, 32, digits(seed=given.seed, tasks=2).tasks[0], given.epochs, 64)
