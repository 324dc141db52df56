"""A small GPT that knows prose is fine-tuned on source code in Hugging Face's Trainer. What is left of the prose?

The texts are on this machine already: the docstrings of Python's standard library (prose) and its source code without them.
A model is trained on the prose and stands for a pretrained one. What it must keep is measured on prose once. Then it learns the
code: without a guard, with EWC, with EWC + AFEC, and with EWC for twice as long, which is what AFEC costs. Perplexities per
byte, of held-out text, before and after.

    python examples/small_gpt.py --seeds 3
"""

from __future__ import annotations

import argparse
import ast
import copy
import csv
import math
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers

import afec
from afec.integrations.transformers import GuardCallback, causal_language_model

LENGTH = 64  # bytes in a piece of text
RATE = 5e-3


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
        prose += [doc for node in nodes if (doc := ast.get_docstring(node))]
        code.append("\n".join(line for line in source.splitlines() if '"""' not in line and "#" not in line))
        if sum(map(len, prose)) > limit:
            break
    return "\n".join(prose).encode()[:limit], "\n".join(code).encode()[:limit]


def samples(text: bytes, held_out: int) -> tuple[list[dict], list[dict]]:
    """Pieces of LENGTH bytes: those to learn from, and one fifth that is held out. Another fifth is for nobody here."""
    rows = torch.tensor(list(text[: len(text) // LENGTH * LENGTH])).reshape(-1, LENGTH)
    pieces = [{"input_ids": row, "labels": row} for row in rows]
    return [p for i, p in enumerate(pieces) if i % 5 > 1], pieces[held_out::5]


def new_model(seed: int) -> transformers.PreTrainedModel:
    """70 000 weights, and bytes as tokens."""
    transformers.set_seed(seed)
    sizes = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 64, "n_layer": 1, "n_head": 4}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def train(model, data: list[dict], epochs: float, seed: int, guard: afec.Guard | None = None) -> None:
    """Nothing here is special but the callback."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            learning_rate=RATE,
            seed=seed,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        callbacks = [] if guard is None else [GuardCallback(guard)]
        trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=callbacks)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def measure(model, data: list[dict], file: Path) -> None:
    """What the model must not forget, on data that stand for it; nothing is trained."""
    guard = afec.EWC(strength=1)
    batch = torch.stack([piece["input_ids"] for piece in data])
    batches = [{"input_ids": part, "labels": part} for part in batch.split(32)]
    with guard.learning(model, None, batches, **causal_language_model()):
        pass
    guard.save_posterior(file, mean=False)  # the mean is the model itself


@torch.no_grad()
def perplexity(model, data: list[dict]) -> float:
    """Per byte."""
    model.eval()
    batch = torch.stack([piece["input_ids"] for piece in data])
    losses = [float(model(input_ids=part, labels=part).loss) * len(part) for part in batch.split(64)]
    return math.exp(sum(losses) / len(batch))


def methods(given: argparse.Namespace) -> Iterator[tuple[str, afec.Guard | None, int]]:
    """Each with its name, its guard, and how long it learns the code."""

    def optimizer(params):
        return torch.optim.AdamW(params, RATE)

    yield "finetune", None, 1
    for strength in given.strength:
        yield f"ewc (λ={strength:g})", afec.EWC(strength), 1
    for strength in given.longer_strength or given.strength:
        yield f"ewc@equal-compute (λ={strength:g})", afec.EWC(strength), 2
    for strength in given.afec_strength or given.strength:
        for forgetting in given.forgetting:
            expansion = afec.AFEC(
                forgetting, epochs=max(1, round(given.epochs)), optimizer=optimizer, expand_from="main"
            )
            yield f"ewc+afec (λ={strength:g}, λ_e={forgetting:g})", afec.EWC(strength) + expansion, 1


def learn(seed: int, given: argparse.Namespace) -> Iterator[list]:
    """The rows of one seed."""
    held_out = 1 if given.validation else 0
    (prose, prose_test), (code, code_test) = (samples(text, held_out) for text in texts(given.bytes))
    with tempfile.TemporaryDirectory() as folder:
        base, posterior = new_model(seed), Path(folder) / "base.safetensors"
        train(base, prose, given.base_epochs, seed)
        measure(base, prose, posterior)
        before = perplexity(base, prose_test), perplexity(base, code_test)
        for name, guard, longer in methods(given):
            model = copy.deepcopy(base)
            if guard is not None:
                guard.load_posterior(posterior, model)
            train(model, code, given.epochs * longer, seed, guard)
            passes = given.epochs * (2 if "afec" in name else longer)
            yield [name, seed, *before, perplexity(model, prose_test), perplexity(model, code_test), passes]


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
    parser.add_argument("--bytes", type=int, default=40_000, help="how much text of each kind")
    parser.add_argument("--base-epochs", type=float, default=10.0, help="passes over the prose")
    parser.add_argument("--epochs", type=float, default=3.0, help="passes over the code")
    parser.add_argument("--strength", type=float, nargs="*", default=[1000.0], help="λ of EWC; several are tried")
    parser.add_argument("--longer-strength", type=float, nargs="*", help="the same for the row of equal compute")
    parser.add_argument("--afec-strength", type=float, nargs="+", help="the same for EWC + AFEC")
    parser.add_argument("--forgetting", type=float, nargs="+", default=[100.0, 1000.0], help="λ_e of AFEC")
    parser.add_argument("--validation", action="store_true", help="measure on other held-out text, to choose a λ")
    parser.add_argument("--csv", type=Path, help="where to write the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for row in learn(seed, given):
            rows.append(row)
            name, _, *values, _ = row
            told = "seed {}: prose {:.2f} -> {:.2f}, code {:.2f} -> {:.2f}"
            print(f"{name:32}", told.format(seed, *(values[i] for i in (0, 2, 1, 3))), flush=True)
            if given.csv:
                write(
                    given.csv,
                    ["method", "seed", "prose_before", "code_before", "prose_after", "code_after", "epochs"],
                    rows,
                )
    if given.seeds > 1:
        for name in dict.fromkeys(row[0] for row in rows):
            prose, code = (statistics.fmean(row[at] for row in rows if row[0] == name) for at in (4, 5))
            print(f"{name:32} mean of {given.seeds}: prose {prose:.2f}, code {code:.2f}")


if __name__ == "__main__":
    main()
