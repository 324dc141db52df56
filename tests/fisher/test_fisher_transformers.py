"""Language models of Hugging Face: every weight by a rule, and what that gives is what one backward pass per sample gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Problem, estimate

transformers = pytest.importorskip("transformers")

WORDS, LENGTH = 11, 5
SMALL = {
    "vocab_size": WORDS,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
    "use_cache": False,
    "attn_implementation": "sdpa",
}


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(n_positions=LENGTH, n_embd=8, n_layer=2, n_head=2, **SMALL)
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
        **SMALL,
    )
    return transformers.LlamaForCausalLM(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        **SMALL | {"pad_token_id": 0},
    )
    return transformers.BertForMaskedLM(config)


MODELS = {"gpt2": gpt2, "llama": llama, "bert": bert}
TOLERANCE = {"gpt2": 1e-9, "llama": 1e-6, "bert": 1e-9}  # Llama's norms work in float32, whatever the weights are


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    with torch.no_grad():
        for weight in model.parameters():  # nothing at its symmetric start: norms at 1, biases at 0
            weight += 0.3 * torch.randn_like(weight)
    return model


def batch_of(samples: int, padded: bool) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, WORDS, (samples, LENGTH), generator=generator)
    tokens[:, 2] = tokens[:, 0]  # a word that comes twice
    lengths = (
        torch.randint(2, LENGTH + 1, (samples,), generator=generator) if padded else torch.full((samples,), LENGTH)
    )
    there = torch.arange(LENGTH)[None] < lengths[:, None]
    labels = torch.where(there, tokens, -100)
    return {"input_ids": torch.where(there, tokens, 0), "attention_mask": there.long(), "labels": labels}


def logits_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits_of(model, batch).flatten(0, 1), batch["labels"][:, 1:].flatten())


def counted(batch: dict[str, Tensor]) -> Tensor:
    return batch["labels"][:, 1:] != -100


def singles(batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    return [{key: rows[i : i + 1] for key, rows in batch.items()} for i in range(len(batch["labels"]))]


def beyond_rounding(squares: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without those that are zero but for rounding: softmax does not see a bias of the keys."""
    return {name: square for name, square in squares.items() if square.max() > 1e-25}


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", MODELS)
def test_empirical_is_one_backward_pass_per_sample(name: str, padded: bool, by_hand, assert_close) -> None:
    model, batch = built(name), batch_of(7, padded)
    problem = Problem(model, loss_of, logits_of, "categorical", class_axis=2, mask=counted)
    weights = dict(model.named_parameters())
    result = estimate(problem, weights, [batch], kind="empirical", chunk=3)
    expected = beyond_rounding(by_hand(model, singles(batch), lambda m, b: [loss_of(m, b)]))
    assert_close(beyond_rounding(result.mean()), expected, TOLERANCE[name])
    assert len(expected) == len(weights) - (2 if name == "bert" else 0)
    assert set(result.routes.values()) == {"fast"}, result.routes


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("large", [False, True], ids=["gumbel", "inverse"])
def test_sample_is_the_same_one_by_one(name: str, padded: bool, large: bool, assert_close, monkeypatch) -> None:
    if large:
        monkeypatch.setattr("afec.fisher.objectives.LARGE", 1)
    model, batch = built(name), batch_of(7, padded)
    weights = dict(model.named_parameters())
    problem = Problem(model, loss_of, logits_of, "categorical", class_axis=2, mask=counted)
    alone = Problem(model, loss_of, logits_of, "categorical", singles, class_axis=2, mask=counted)
    result = estimate(problem, weights, [batch], kind="sample", chunk=3)
    loop = estimate(alone, weights, [batch], kind="sample")
    assert_close(beyond_rounding(result.mean()), beyond_rounding(loop.mean()), TOLERANCE[name])
    assert set(result.routes.values()) == {"fast"}
    assert set(loop.routes.values()) == {"loop"}


def test_both_uses_of_a_tied_weight_count_before_squaring(by_hand) -> None:
    """Squares of each use apart are another number: the test would see a rule that forgot the product of both."""
    model, batch = built("gpt2"), batch_of(6, padded=False)
    wte = model.transformer.wte
    tied = by_hand(model, singles(batch), lambda m, b: [loss_of(m, b)])["transformer.wte.weight"]
    apart = built("gpt2")
    apart.lm_head.weight = nn.Parameter(wte.weight.detach().clone())
    untied = by_hand(apart, singles(batch), lambda m, b: [loss_of(m, b)])
    sum_of_squares = untied["transformer.wte.weight"] + untied["lm_head.weight"]
    assert (tied - sum_of_squares).abs().max() > 0.1 * tied.max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_sends_no_weight_to_a_slower_route(dtype: torch.dtype) -> None:
    model = built("gpt2").to(dtype)
    result = estimate(Problem(model, loss_of), dict(model.named_parameters()), [batch_of(6, False)], kind="empirical")
    assert set(result.routes.values()) == {"fast"}
    assert {square.dtype for square in result.squares.values()} == {torch.float32}


class Logits(nn.Module):
    """The same logits at each position of each sample, whatever the input."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), 2, -1) + 0 * x[:, :, None]


@pytest.mark.parametrize("large", [False, True], ids=["gumbel", "inverse"])
def test_draws_have_the_probabilities_of_the_softmax(large: bool, monkeypatch) -> None:
    """By hand: F of a logit z_c is p_c(1 − p_c)/T for the mean of T independent positions, which both ways of drawing meet."""
    if large:
        monkeypatch.setattr("afec.fisher.objectives.LARGE", 1)
    logits = torch.tensor([2.0, 0.0, -1.0, -torch.inf, 1.0, -torch.inf], dtype=torch.float64)
    model, samples = Logits(logits), 40_000
    problem = Problem(model, lambda m, b: m(b).mean(), lambda m, b: m(b), "categorical", class_axis=2)
    x = torch.zeros(samples, 2, dtype=torch.float64)
    found = estimate(problem, {"z": model.logits}, [x], kind="sample", chunk=samples).mean()["z"]
    p = logits.softmax(0)
    torch.testing.assert_close(found, p * (1 - p) / 2, rtol=0.03, atol=1e-12)


def test_no_noise_of_the_size_of_the_vocabulary(monkeypatch) -> None:
    """Beyond LARGE outputs one float64 for each position is all that is drawn."""
    drawn: list[int] = []
    rand = torch.rand

    def counting(*shape: object, **options: object) -> Tensor:
        result = rand(*shape, **options)
        drawn.append(result.numel())
        return result

    monkeypatch.setattr(torch, "rand", counting)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(3000, 4), nn.Linear(4, 3000))
    problem = Problem(model, lambda m, b: m(b).mean(), lambda m, b: m(b), "categorical", class_axis=2)
    tokens = torch.randint(0, 3000, (4, 5))
    estimate(problem, dict(model.named_parameters()), [tokens], kind="sample")
    assert drawn == [4 * 5]


def test_fewer_samples_are_in_flight_where_the_output_is_large(monkeypatch) -> None:
    model = nn.Sequential(nn.Embedding(300, 4), nn.Linear(4, 300))
    sizes: list[int] = []
    model.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    tokens = torch.randint(0, 300, (16, 5), generator=torch.Generator().manual_seed(0))
    problem = Problem(model, lambda m, b: F.cross_entropy(m(b).flatten(0, 1), b.flatten()))
    whole = estimate(problem, dict(model.named_parameters()), [tokens], kind="empirical")
    assert sizes[-1] == 16
    monkeypatch.setattr("afec.fisher.plan.OUTPUT", 300 * 5 * 3)
    cut = estimate(problem, dict(model.named_parameters()), [tokens], kind="empirical")
    assert sizes[-6:] == [3, 3, 3, 3, 3, 1]
    torch.testing.assert_close(cut.mean(), whole.mean())
