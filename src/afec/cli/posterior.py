"""`afec posterior make | show`: the posterior of a base model as a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

__all__ = ["posterior"]

posterior = typer.Typer(help="What a base model must not forget, measured once and shared.", no_args_is_help=True)


@posterior.command("make")
def make(
    model: Annotated[
        str,
        typer.Argument(
            help="file.py:function or module:function that returns (model, data, loss_fn), or the arguments of "
            "guard.learning as a dict; or a folder (or name) of a causal language model of transformers, with --text."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("posterior.safetensors"),
    text: Annotated[list[Path] | None, typer.Option(help="A text file; may be given several times.")] = None,
    fisher: Annotated[str, typer.Option(help="auto, exact, sample, empirical, batched.")] = "auto",
    samples: Annotated[
        int | None, typer.Option(min=1, help="How many samples to measure on; all if not given.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=2, help="With --text: tokens in a sample; 128 if not given, or as many as the model takes."),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="What people call these weights.")] = "",
    mean: Annotated[
        bool, typer.Option(help="Whether the weights are in the file; without, others need the same checkpoint.")
    ] = True,
) -> None:
    """Measure the Fisher of a base model on proxy data and write it as a posterior of EWC."""
    from afec.lab import SpecError
    from afec.methods import EWC

    try:
        arguments = _language_model(model, text, length) if text else _arguments(model)
        kind: Any = fisher  # EWC says which there are
        guard = EWC(1.0, fisher=kind, fisher_samples=samples)
        with guard.learning(**{"optimizer": None, **arguments}):
            pass
        guard.save_posterior(output, mean=mean, checkpoint=checkpoint or (Path(model).name if text else ""))
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise SpecError(str(error)) from error
    show(output)


@posterior.command("show")
def show(file: Annotated[Path, typer.Argument(help="A file that `make` or guard.save_posterior wrote.")]) -> None:
    """What a posterior is of, how it was measured, and which weights matter most."""
    from rich.table import Table

    from afec.posterior import Posterior

    found = Posterior.load(file)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    facts = Table(box=None, show_header=False)
    for name, value in found.facts().items():
        facts.add_row(name, str(value))
    console.print(facts, highlight=False)
    weights = Table("weight", "shape", "mean precision", "largest", box=None)
    by_size = sorted(found.precision.items(), key=lambda item: -float(item[1].float().mean()))
    for name, precision in by_size[:20]:
        values = precision.float()
        weights.add_row(
            name, "×".join(map(str, values.shape)), f"{float(values.mean()):.3g}", f"{float(values.max()):.3g}"
        )
    console.print(weights, highlight=False)
    if len(by_size) > 20:
        console.print(f"… and {len(by_size) - 20} more", highlight=False)


def _arguments(place: str) -> dict[str, Any]:
    from afec.naming import load_object

    if Path(place).is_dir():
        raise ValueError(f"{place} is a folder: of a language model in it, give --text FILE, what it must not forget")
    made = load_object(place)()
    if isinstance(made, dict):
        return made
    if not isinstance(made, tuple) or len(made) != 3:
        raise TypeError(f"{place} must return (model, data, loss_fn), or a dict; got {type(made).__name__}")
    return dict(zip(("model", "data", "loss_fn"), made, strict=True))


def _language_model(place: str, texts: list[Path], length: int | None) -> dict[str, Any]:
    import torch

    from afec.integrations.transformers import causal_language_model

    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ImportError(f"--text needs transformers ({error}): pip install 'afec[transformers]'") from error
    contents = [_read(path) for path in texts]  # before anything large is loaded
    model, loading = AutoModelForCausalLM.from_pretrained(place, output_loading_info=True)
    if missing := sorted(loading["missing_keys"]):
        raise ValueError(
            f"{place} holds no causal language model: {missing[0]} ({len(missing)} such) is missing and would be random. "
            "Of another model, give file.py:function"
        )
    most = getattr(model.config, "max_position_embeddings", None)
    if length is not None and most is not None and length > most:
        raise ValueError(f"--length {length}: {place} takes at most {most} tokens")
    length = min(128, most or 128) if length is None else length
    tokens = _tokens(place, contents, model.get_input_embeddings().num_embeddings)
    rows = torch.tensor(tokens[: len(tokens) // length * length]).reshape(-1, length)
    if len(rows) == 0:
        raise ValueError(f"the texts have {len(tokens)} tokens, fewer than one sample of --length {length}")
    batches = [{"input_ids": part, "labels": part} for part in torch.split(rows, 8)]
    return {"model": model, "data": batches, **causal_language_model()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from error


def _tokens(place: str, contents: list[str], known: int) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(place)
    tokens = [token for content in contents for token in tokenizer(content, verbose=False)["input_ids"]]
    if any(contents) and not tokens:
        raise ValueError(f"{place} has no tokenizer; put the model's beside it: tokenizer.save_pretrained({place!r})")
    if max(tokens, default=0) >= known:
        raise ValueError(
            f"{place}: its tokenizer has a token {max(tokens)}, its model only {known}: not of one another"
        )
    return tokens
