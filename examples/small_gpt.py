"""A small GPT in Hugging Face's Trainer: first prose, then source code. What is left of the prose?

The texts are on this machine already: the docstrings of the standard library (prose) and its source code without them. The same
model is trained on the one and then on the other: without a guard, with EWC, with EWC twice as long (the compute of AFEC), and
with EWC + AFEC. Perplexities per byte on held-out text, before and after.

    python examples/small_gpt.py --seeds 3 --csv results/fine-tuning/small-gpt.csv
"""

from __future__ import annotations

import argparse
import ast
import csv
import math
import statistics
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers

import afec
from afec.integrations.transformers import GuardCallback

LENGTH = 64


def texts(limit: int) -> tuple[bytes, bytes]:
    """Prose and code of the standard library, so many bytes each."""
    prose, code = [], []
    for path in sorted(Path(ast.__file__).parent.glob("*.py")):
        try:
            source = path.read_text()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                nodes = [
                    n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)
                ]
        except (UnicodeDecodeError, SyntaxError):
            continue
        found = [doc for node in nodes if (doc := ast.get_docstring(node))]
        prose += found
        code.append("\n".join(line for line in source.splitlines() if '"""' not in line and "#" not in line))
        if sum(map(len, prose)) > limit:
            break
    return "\n".join(prose).encode()[:limit], "\n".join(code).encode()[:limit]


def samples(text: bytes) -> tuple[list[dict], list[dict]]:
    """Pieces of LENGTH bytes; every fifth is held out."""
    rows = torch.tensor(list(text[: len(text) // LENGTH * LENGTH])).reshape(-1, LENGTH)
    pieces = [{"input_ids": row, "labels": row} for row in rows]
    return [p for i, p in enumerate(pieces) if i % 5], pieces[::5]


def new_model(seed: int) -> transformers.PreTrainedModel:
    """Half a million weights, and bytes as tokens."""
    transformers.set_seed(seed)
    sizes = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 96, "n_layer": 3, "n_head": 4}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def train(model, data: list[dict], epochs: float, seed: int, guard: afec.Guard | None = None) -> None:
    """Nothing here is special but the callback."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=32,
            learning_rate=2e-3,
            seed=seed,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        callbacks = [] if guard is None else [GuardCallback(guard)]
        transformers.Trainer(model, arguments, train_dataset=data, callbacks=callbacks).train()


@torch.no_grad()
def perplexity(model, data: list[dict]) -> float:
    """Per byte."""
    model.eval()
    batch = torch.stack([piece["input_ids"] for piece in data])
    losses = [float(model(input_ids=part, labels=part).loss) * len(part) for part in batch.split(64)]
    return math.exp(sum(losses) / len(batch))


def main() -> None:
    """All rows, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--bytes", type=int, default=60_000, help="how much text of each kind")
    parser.add_argument("--epochs", type=float, default=4.0, help="passes over each text")
    parser.add_argument("--strength", type=float, default=1000.0, help="λ of EWC")
    parser.add_argument("--forgetting", type=float, default=10.0, help="λ_e of AFEC")
    parser.add_argument("--csv", type=Path, help="where to write the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    (prose, prose_test), (code, code_test) = map(samples, texts(given.bytes))

    def theta_e(params):
        return torch.optim.AdamW(params, 2e-3)

    expansion = {"forgetting": given.forgetting, "epochs": max(1, round(given.epochs)), "optimizer": theta_e}
    methods = {
        "finetune": (lambda: None, 1),
        "ewc": (lambda: afec.EWC(given.strength), 1),
        "ewc, twice as long": (lambda: afec.EWC(given.strength), 2),
        "ewc+afec": (lambda: afec.EWC(given.strength) + afec.AFEC(**expansion, expand_from="main"), 1),
    }
    rows = []
    for seed in range(given.seeds):
        for name, (make, longer) in methods.items():
            model, guard = new_model(seed), make()
            train(model, prose, given.epochs, seed, guard)
            before = perplexity(model, prose_test), perplexity(model, code_test)
            train(model, code, given.epochs * longer, seed, guard)
            after = perplexity(model, prose_test), perplexity(model, code_test)
            rows.append([name, seed, *(f"{value:.4f}" for value in (*before, *after))])
            print(
                f"{name:20} seed {seed}: prose {before[0]:.2f} -> {after[0]:.2f}, code {before[1]:.2f} -> {after[1]:.2f}"
            )
            sys.stdout.flush()
    for name in methods:
        ends = [[float(row[at]) for row in rows if row[0] == name] for at in (4, 5)]
        print(
            f"{name:20} prose {statistics.mean(ends[0]):.2f}, code {statistics.mean(ends[1]):.2f} (mean of {given.seeds})"
        )
    if given.csv:
        given.csv.parent.mkdir(parents=True, exist_ok=True)
        with given.csv.open("w", newline="") as file:
            header = ["method", "seed", "prose before", "code before", "prose after", "code after"]
            csv.writer(file, lineterminator="\n").writerows([header, *rows])


if __name__ == "__main__":
    main()
