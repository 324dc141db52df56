"""What a Fisher pass costs on a GPT-2, beside forward and backward over the same tokens, in the same run.

    PYTHONPATH=src python bench/language_model.py               # 9.6 M weights, 128 tokens: CPU time and peak memory
    PYTHONPATH=src python bench/language_model.py --length 256  # longer sequences

One thread, random weights and tokens. Times are CPU time, the best of several rounds, and each round runs everything once, one
after the other. Memory is the peak of live tensors beyond the model: of a training step with AdamW (gradients, its two
averages, activations), and of a Fisher pass (its sums, activations).
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from afec.fisher import Kind, Problem, estimate
from live_memory import peak_bytes

VOCABULARY, WIDTH, LAYERS, HEADS = 12_800, 256, 8, 4

Batch = dict[str, torch.Tensor]


def gpt2(length: int) -> GPT2LMHeadModel:
    """A GPT-2 of 9.6 M weights, the embedding tied to the output layer as usual."""
    logging.set_verbosity_error()
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=length, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, use_cache=False
    )
    torch.manual_seed(0)
    return GPT2LMHeadModel(config)


def loss(model: Any, batch: Batch) -> torch.Tensor:
    """The mean over all tokens but the first of −log p(token | those before it)."""
    logits = model(**batch).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), batch["input_ids"][:, 1:].flatten())


def problem_of(model: GPT2LMHeadModel) -> Problem:
    """The model as the Fisher sees it."""
    return Problem(model, loss, lambda m, b: m(**b).logits[:, :-1], "categorical", class_axis=-1)


def plain(problem: Problem, batches: list[Batch]) -> None:
    """Forward and backward, as in training, without an optimiser."""
    for batch in batches:
        problem.model.zero_grad()
        problem.loss(problem.model, batch).backward()
    problem.model.zero_grad()


def train(problem: Problem, batches: list[Batch]) -> None:
    """The same with steps of AdamW."""
    optimizer = torch.optim.AdamW(problem.model.parameters(), lr=0.0, weight_decay=0.0)
    for batch in batches:
        optimizer.zero_grad()
        problem.loss(problem.model, batch).backward()
        optimizer.step()
    problem.model.zero_grad()


def fisher(problem: Problem, batches: list[Batch], kind: Kind, every_by_rule: bool) -> None:
    """One Fisher pass."""
    result = estimate(problem, dict(problem.model.named_parameters()), batches, kind=kind, batch_size=len(batches[0]))
    slow = sorted(name for name, route in result.routes.items() if route not in ("fast", "batch"))
    assert not (slow and every_by_rule), f"not by a rule: {slow}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--sequences", type=int, default=64, help="how many in all")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=["empirical", "sample", "batched"])
    parser.add_argument("--fallbacks", action="store_true", help="go on where a weight is served by no rule")
    options = parser.parse_args()
    torch.set_num_threads(1)
    problem = problem_of(gpt2(options.length))
    problem.model.eval()
    tokens = torch.randint(
        0, VOCABULARY, (options.sequences, options.length), generator=torch.Generator().manual_seed(0)
    )
    batches = [{"input_ids": part} for part in tokens.split(options.batch)]
    runs = {"forward + backward": partial(plain, problem, batches)}
    runs |= {kind: partial(fisher, problem, batches, kind, not options.fallbacks) for kind in options.kinds}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(options.rounds):
        for label, run in runs.items():
            start = time.process_time()
            run()
            best[label] = min(best[label], time.process_time() - start)
    base = best["forward + backward"]
    training = peak_bytes(partial(train, problem, batches[:2]))
    weights = sum(weight.numel() for weight in problem.model.parameters())
    print(
        f"gpt2, {weights / 1e6:.1f} M weights, {options.sequences} sequences of {options.length} tokens in batches of "
        f"{options.batch}, {torch.get_num_threads()} thread; a training step with AdamW takes {training / 2**20:.0f} MB"
    )
    for label, run in runs.items():
        peak = peak_bytes(run)
        print(
            f"  {label:<20}{best[label]:7.2f} s   {best[label] / base:5.2f} x   peak {peak / 2**20:5.0f} MB, "
            f"{peak / training:.2f} x training"
        )


if __name__ == "__main__":
    main()
