"""LoRA in two legs on one adapter: hold what the first leg did to each matrix, ΔW = B·A, while the second is learned.

A small GPT learns to count upwards (its pretraining), then gets an adapter for even steps, then the same adapter for steps of
three. How well it still counts (loss), after both legs: without a guard; held on A and B apart; on ΔW; and on ΔW to the base
model, by what was measured of it before there was an adapter.

    python examples/lora_two_legs.py --seeds 5
"""

import argparse
import copy
import csv
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import peft
import torch
import transformers

import afec
from afec.integrations.transformers import causal_language_model

WORDS, LENGTH = 32, 12
TASKS = {"base": 1, "first_leg": 2, "second_leg": 3}


def counting(task: str) -> torch.Tensor:
    """Sequences that count by one, two or three, from everywhere."""
    return (torch.arange(WORDS)[:, None] + TASKS[task] * torch.arange(LENGTH)) % WORDS


def train(model: torch.nn.Module, task: str, guard: afec.Guard, steps: int = 60) -> None:
    """A plain loop over one batch."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    batch = {"input_ids": counting(task), "labels": counting(task)}
    with guard.learning(model, optimizer, [batch], **causal_language_model()):
        for _ in range(steps):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()


@torch.no_grad()
def losses(model: torch.nn.Module) -> list[float]:
    """Of all three tasks."""
    model.eval()
    return [float(model(input_ids=counting(task), labels=counting(task)).loss) for task in TASKS]


def pretrained(seed: int, posterior: Path) -> torch.nn.Module:
    """A model that counts by one, and a file that says what it must not forget of that."""
    transformers.set_seed(seed)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    train(model, "base", afec.EWC(strength=0))
    # A sampled Fisher comes from labels that the model thinks unlikely. This one is nearly sure, so it is asked often.
    batch = {"input_ids": counting("base"), "labels": counting("base")}
    guard = afec.EWC(strength=1)
    with guard.learning(model, None, [batch] * 30, **causal_language_model()):
        pass
    guard.save_posterior(posterior, mean=False)
    return model


def methods(given: argparse.Namespace) -> Iterator[tuple[str, afec.Guard]]:
    """Each with its name; several strengths are several rows."""
    yield "finetune", afec.EWC(0)
    for strength in given.strength:
        yield f"A and B apart (λ={strength:g})", afec.EWC(strength)
        yield f"ΔW (λ={strength:g})", afec.EWC(strength, on="delta")
    for strength in given.base_strength:
        yield f"ΔW, to the base (λ={strength:g})", afec.EWC(strength, on="delta", anchor="base")


def learn(seed: int, given: argparse.Namespace) -> Iterator[tuple[str, list[float]]]:
    """The losses of each method after both legs."""
    with tempfile.TemporaryDirectory() as folder:
        posterior = Path(folder) / "base.safetensors"
        base = pretrained(seed, posterior)
        for name, guard in methods(given):
            transformers.set_seed(seed)
            config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
            model = peft.get_peft_model(copy.deepcopy(base), config)
            if "base" in name:
                guard.load_posterior(posterior, model)
            for task in ("first_leg", "second_leg"):
                train(model, task, guard)
            yield name, losses(model)


def write(path: Path, header: list[str], rows: list[list]) -> None:
    """The numbers so far, as a CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([*row[:2], *(f"{value:.6g}" for value in row[2:])] for row in rows)


def main() -> None:
    """All rows, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument("--strength", type=float, nargs="*", default=[1000.0], help="λ of EWC; several are tried")
    parser.add_argument(
        "--base-strength", type=float, nargs="*", default=[1e5], help="the same for holding to the base"
    )
    parser.add_argument("--csv", type=Path, help="where to write the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for name, found in learn(seed, given):
            rows.append([name, seed, *found])
            print(f"{name:28} seed {seed}: base {found[0]:.3f}, legs {found[1]:.3f} and {found[2]:.3f}", flush=True)
        if given.csv:
            write(given.csv, ["method", "seed", *TASKS], rows)
    if given.seeds > 1:
        for name in dict.fromkeys(row[0] for row in rows):
            means = [statistics.fmean(row[at] for row in rows if row[0] == name) for at in (2, 3, 4)]
            print(f"{name:28} mean of {given.seeds}: base {means[0]:.3f}, legs {means[1]:.3f} and {means[2]:.3f}")


if __name__ == "__main__":
    main()
