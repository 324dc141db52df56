"""How far the Fisher of a part of the data (`fisher_samples=N`) is from that of all of them.

    PYTHONPATH=src python bench/fisher_samples.py            # the digits, and a small GPT-2 on the text of this package

Both nets are trained first. For each N and each of several draws: the relative error of the sum over all weights (it is what a
strength λ is scaled by), the correlation over the weights, and the part of the penalty's direction that is lost, 1 − cos of
F_N and F as vectors. Means over the draws.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import afec
from afec.fisher import Kind, Problem, estimate
from afec.nets import DigitsBackbone
from afec.streams import digits

LENGTH = 64


def trained_digits(seed: int) -> tuple[Problem, tuple[Tensor, ...], int]:
    """The built-in digits, all ten classes, after ten epochs."""
    torch.manual_seed(seed)
    task = digits(seed=seed, tasks=1).tasks[0]
    backbone = DigitsBackbone()
    model = nn.Sequential(backbone, nn.Linear(backbone.out_features, 10))
    data = (task.train.inputs, task.train.targets)
    train(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), data, epochs=10, batch=32)
    problem = Problem(
        model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), lambda m, b: m(b[0]), "categorical", class_axis=1
    )
    return problem, data, len(data[0])


def trained_gpt2(seed: int) -> tuple[Problem, tuple[Tensor, ...], int]:
    """A GPT-2 of 0.9 M weights over bytes, on the sources of this package, after one epoch."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    text = "".join(path.read_text() for path in sorted(Path(afec.__file__).parent.rglob("*.py")))
    tokens = torch.tensor(list(text.encode()))
    tokens = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)[:4096]
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4, use_cache=False)
    )

    def logits(m: nn.Module, b: Any) -> Tensor:
        return m(b[0]).logits[:, :-1]

    def loss(m: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(logits(m, b).flatten(0, 1), b[0][:, 1:].flatten())

    train(model, loss, (tokens,), epochs=1, batch=32)
    return Problem(model, loss, logits, "categorical", class_axis=-1), (tokens,), len(tokens)


def train(model: nn.Module, loss: Any, data: tuple[Tensor, ...], epochs: int, batch: int) -> None:
    """Plain Adam."""
    optimizer, generator = torch.optim.Adam(model.parameters(), 1e-3), torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for indices in torch.randperm(len(data[0]), generator=generator).split(batch):
            optimizer.zero_grad()
            loss(model, tuple(part[indices] for part in data)).backward()
            optimizer.step()


def flat(problem: Problem, data: tuple[Tensor, ...], kind: Kind, indices: Tensor, seed: int) -> Tensor:
    """The Fisher on some samples, as one vector."""
    weights = dict(problem.model.named_parameters())
    batches = [tuple(part[few] for part in data) for few in indices.split(64)]
    found = estimate(problem, weights, batches, kind=kind, seed=seed).mean()
    return torch.cat([square.double().flatten() for square in found.values()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, make in (("digits", trained_digits), ("gpt2", trained_gpt2)):
        problem, data, total = make(options.seed)
        problem.model.eval()
        print(f"{name}: {total} samples, seed {options.seed}, {options.draws} draws")
        for kind in ("sample", "empirical"):
            whole = flat(problem, data, kind, torch.arange(total), seed=0)
            for samples in (32, 128, 512):
                rows = []
                for draw in range(options.draws):
                    generator = torch.Generator().manual_seed(draw)
                    part = flat(problem, data, kind, torch.randperm(total, generator=generator)[:samples], draw + 1)
                    cosine = F.cosine_similarity(part, whole, dim=0)
                    correlation = torch.corrcoef(torch.stack([part, whole]))[0, 1]
                    rows.append(torch.stack([(part.sum() / whole.sum() - 1).abs(), correlation, 1 - cosine]))
                off, correlation, lost = torch.stack(rows).mean(0).tolist()
                print(
                    f"  {kind:<10} N = {samples:>4}: sum off by {off:6.1%}, correlation {correlation:.3f}, 1 − cos {lost:.3f}"
                )


if __name__ == "__main__":
    main()
