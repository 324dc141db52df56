"""Outputs with positions: tokens and pixels. By hand on a small GPT, by enumeration, and what is refused."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec import EWC, MAS
from afec.fisher import Problem, choose_kind, estimate
from afec.guard.problem import BlockArguments, read_problem

DOUBLE = torch.float64
VOCABULARY = 7
Batch = tuple[Tensor, Tensor]


def problem_under(model, criterion):
    """What a block reads of a model and a criterion alone."""
    return read_problem(model, BlockArguments(model, None, (), criterion))


class GPT(nn.Module):
    """One block: causal attention and an MLP. Logits are (batch, time, vocabulary)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(16, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 6), nn.GELU(), nn.Linear(6, width))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        q, k, v = self.qkv(self.first(h)).chunk(3, -1)
        late = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(1, 2)).masked_fill(late, -torch.inf)
        h = h + self.out(scores.softmax(-1) @ v)
        return self.head(h + self.mlp(self.second(h)))


class Transposed(GPT):
    """The same with logits as CrossEntropyLoss wants them, (batch, vocabulary, time)."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).transpose(1, 2)


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def predict(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch[0])


def sequences(length: int, padded: bool, samples: int = 5) -> Batch:
    """Tokens and targets; padded to different lengths, two of them equal."""
    generator = torch.Generator().manual_seed(length)
    tokens, targets = torch.randint(0, VOCABULARY, (2, samples, length), generator=generator)
    if padded:
        for row, real in enumerate((length, 1, length - 1, 2, length - 1)[:samples]):
            targets[row, real:] = -100
    return tokens, targets


def net(kind: type[GPT] = GPT) -> GPT:
    torch.manual_seed(0)
    return kind().double()


def singles(batch: Batch) -> list[Batch]:
    return [(batch[0][i : i + 1], batch[1][i : i + 1]) for i in range(len(batch[0]))]


def real(batch: Batch) -> list[int]:
    return [t for t in range(batch[1].shape[1]) if batch[1][0, t] != -100]


def exact_by_hand(model: nn.Module, batch: Batch) -> list[Tensor]:
    """√p · log p / T of each class at each real position: labels of positions are independent."""
    logits, places = model(batch[0])[0], real(batch)
    logits = logits.T if isinstance(model, Transposed) else logits
    log_p = [logits[t].log_softmax(0)[c] for t in places for c in range(VOCABULARY)]
    return [value.detach().exp().sqrt() * value / len(places) for value in log_p]


LENGTHS, PADDED = pytest.mark.parametrize("length", [4, 6, 9]), pytest.mark.parametrize("padded", [False, True])


def problem_of(model: GPT) -> Problem:
    """(batch, time, vocabulary) comes with a function, the other order with torch's criterion."""
    if isinstance(model, Transposed):
        return problem_under(model, nn.CrossEntropyLoss())
    return Problem(model, token_loss, predict, "categorical", mask=lambda batch: batch[1] != -100)


@LENGTHS
@PADDED
@pytest.mark.parametrize("kind", [GPT, Transposed])
def test_exact_is_of_the_mean_over_real_tokens(
    length: int, padded: bool, kind: type[GPT], by_hand, assert_close
) -> None:
    model, batch = net(kind), sequences(length, padded)
    result = estimate(problem_of(model), dict(model.named_parameters()), [batch], kind="exact", chunk=2)
    assert_close(result.mean(), by_hand(model, singles(batch), exact_by_hand))
    assert {result.routes[name] for name in ("token.weight", "qkv.weight", "head.bias")} == {"fast"}


@LENGTHS
@PADDED
@pytest.mark.parametrize("kind", [GPT, Transposed])
def test_sample_draws_a_label_at_each_real_token(
    length: int, padded: bool, kind: type[GPT], by_hand, assert_close
) -> None:
    model, batch = net(kind), sequences(length, padded)
    result = estimate(problem_of(model), dict(model.named_parameters()), [batch], kind="sample", seed=3, chunk=2)
    # The same draws, from the seed: Gumbel noise in the shape of the output, sample by sample.
    shape = model(batch[0]).shape
    uniform = torch.rand(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(3))
    noise = -torch.log(-torch.log(uniform))
    noise = noise.transpose(1, 2) if kind is Transposed else noise
    alone = singles(batch)
    order = {id(single): row for row, single in enumerate(alone)}

    def drawn(model: nn.Module, batch: Batch) -> list[Tensor]:
        logits = model(batch[0])[0]
        logits = logits.T if kind is Transposed else logits
        label = (logits.detach() + noise[order[id(batch)]]).argmax(1)
        return [sum(logits[t].log_softmax(0)[label[t]] for t in real(batch)) / len(real(batch))]

    assert_close(result.mean(), by_hand(model, alone, drawn))


@LENGTHS
@PADDED
@pytest.mark.parametrize("kind", [GPT, Transposed])
@pytest.mark.parametrize("chunk", [1, 16])
def test_empirical_is_of_the_mean_over_real_tokens(
    length: int, padded: bool, kind: type[GPT], chunk: int, by_hand, assert_close
) -> None:
    """Also where the loss of a batch is the mean over all its tokens, so that longer sequences weigh more in it."""
    model, batch = net(kind), sequences(length, padded)
    problem = problem_of(model)
    result = estimate(problem, dict(model.named_parameters()), [batch], kind="empirical", chunk=chunk)
    assert_close(result.mean(), by_hand(model, singles(batch), lambda model, batch: [problem.loss(model, batch)]))
    assert result.routes["qkv.weight"] == result.routes["head.weight"] == "fast"


@LENGTHS
@PADDED
def test_batched_is_of_the_loss_of_a_batch(length: int, padded: bool, by_hand, assert_close) -> None:
    model, (tokens, targets) = net(), sequences(length, padded)
    batches = list(zip(tokens.split(2), targets.split(2), strict=True))
    result = estimate(problem_of(model), dict(model.named_parameters()), batches, kind="batched", batch_size=None)
    assert_close(result.mean(), by_hand(model, batches, lambda model, batch: [token_loss(model, batch)]))


@LENGTHS
@PADDED
@pytest.mark.parametrize("norm", ["squared", "l2"])
def test_mas_is_of_the_mean_over_real_tokens(length: int, padded: bool, norm: str) -> None:
    model, batch = net(), sequences(length, padded)
    found = []
    for options in ({}, {"batch": 2}):
        guard = MAS(1.0, norm=norm, **options)
        with guard.learning(model, None, batch, token_loss, mask=lambda batch: batch[1] != -100):
            pass
        found.append(guard.state_dict()["states"]["mas"]["precision"])
    model.eval()
    weights = dict(model.named_parameters())
    power = 2 if norm == "squared" else 1
    slopes = []
    for single in singles(batch):
        value = sum(model(single[0])[0, t].norm() ** power for t in real(single)) / len(real(single))
        slopes.append(torch.autograd.grad(value, list(weights.values())))
    for index, name in enumerate(weights):
        rows = torch.stack([slope[index] for slope in slopes])
        torch.testing.assert_close(found[0][name], rows.abs().mean(0), rtol=1e-8, atol=1e-12)
        pairs = sum(pair.sum(0).abs() for pair in rows.split(2)) / len(rows)
        torch.testing.assert_close(found[1][name], pairs, rtol=1e-8, atol=1e-12)


def test_the_length_of_the_padding_plays_no_part(assert_close) -> None:
    model, (tokens, targets) = net(), sequences(4, padded=True)
    longer = (F.pad(tokens, (0, 5)), F.pad(targets, (0, 5), value=-100))
    weights = dict(model.named_parameters())
    for kind in ("exact", "empirical", "batched"):
        results = [estimate(problem_of(model), weights, [batch], kind=kind) for batch in ((tokens, targets), longer)]
        assert_close(results[1].mean(), results[0].mean())


@pytest.mark.parametrize("kind", ["exact", "sample", "empirical"])
def test_a_sample_that_is_all_padding_is_no_sample(kind: str, assert_close) -> None:
    model, (tokens, targets) = net(), sequences(4, padded=True)
    weights = dict(model.named_parameters())
    empty = (torch.cat([tokens, tokens[:1]]), torch.cat([targets, torch.full((1, 4), -100)]))
    found = estimate(problem_of(model), weights, [empty], kind=kind)
    assert found.count == 5
    assert_close(found.mean(), estimate(problem_of(model), weights, [(tokens, targets)], kind=kind).mean())


# -- the definition: the expected square of the loss's own gradient, over the model's own labels ----------------------


@pytest.mark.parametrize(
    ("shape", "mask"),
    [
        ((3, 2), [True, True]),
        ((3, 3), [True, False, True]),
        ((2, 2, 2), [[True, True], [True, True]]),
        ((2, 2, 2), [[True, False], [True, True]]),
    ],
)
def test_exact_is_empirical_over_all_labels(shape: tuple[int, ...], mask: list, assert_close) -> None:
    """Σ_y p(y) · empirical(y), over every labelling y of all positions: tokens, and the pixels of a segmentation."""
    torch.manual_seed(1)
    net = nn.Conv1d(2, 3, 1).double() if len(shape) == 2 else nn.Conv2d(2, 2, 3, padding=1).double()
    x, counted = torch.randn(1, 2, *shape[1:], dtype=DOUBLE), torch.tensor(mask)[None]
    problem = problem_under(net, nn.CrossEntropyLoss())
    weights = dict(net.named_parameters())
    log_p = net(x).detach().log_softmax(1)
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    certainty = 0.0
    for labels in itertools.product(range(shape[0]), repeat=int(counted.sum())):
        y = torch.full(counted.shape, -100)
        y[counted] = torch.tensor(labels)
        p = log_p.gather(1, y.clamp_min(0)[:, None])[:, 0][counted].sum().exp()
        certainty += p.item()
        for name, square in estimate(problem, weights, [(x, y)], kind="empirical").mean().items():
            total[name] += p * square
    assert certainty == pytest.approx(1, rel=1e-12)
    assert_close(estimate(problem, weights, [(x, y)], kind="exact").mean(), total)


@pytest.mark.parametrize("outputs", [1, 2, 5])
@pytest.mark.parametrize("positions", [None, 3])
def test_regression_belongs_to_mse_loss(outputs: int, positions: int | None, assert_close) -> None:
    """The gradient is linear in the noise y − f, so E over unit noise is the sum over one step along each output."""
    torch.manual_seed(1)
    net = nn.Linear(2, outputs).double()
    x = torch.randn(1, 2, dtype=DOUBLE) if positions is None else torch.randn(1, positions, 2, dtype=DOUBLE)
    problem, weights = problem_under(net, nn.MSELoss()), dict(net.named_parameters())
    f = net(x).detach()
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for step in torch.eye(f.numel(), dtype=DOUBLE):
        stepped = (x, f + step.reshape(f.shape))
        for name, square in estimate(problem, weights, [stepped], kind="empirical").mean().items():
            total[name] += square
    exact = estimate(problem, weights, [(x, f)], kind="exact").mean()
    assert_close(exact, total)
    many = (x.expand(4000, *x.shape[1:]), f.expand(4000, *f.shape[1:]))
    sampled = estimate(problem, weights, [many], kind="sample", chunk=512).mean()
    assert_close(sampled, exact, 0.15)


def test_regression_with_two_outputs_is_half_the_square(assert_close) -> None:
    """MSE over two outputs is ½‖y − f‖²: torch's criterion and `likelihood="gaussian"` are one there."""
    torch.manual_seed(1)
    net, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=DOUBLE)
    weights, batch = dict(net.named_parameters()), (x, torch.zeros(4, 2, dtype=DOUBLE))
    known = estimate(problem_under(net, nn.MSELoss()), weights, [batch], kind="exact")
    said = estimate(
        Problem(net, lambda m, b: F.mse_loss(m(b[0]), b[1]), predict, "gaussian"), weights, [batch], kind="exact"
    )
    assert_close(known.mean(), said.mean())


def test_regression_at_positions_with_a_function(by_hand, assert_close) -> None:
    """½‖y_t − f_t‖², the mean over the positions that count."""
    torch.manual_seed(1)
    net, x = nn.Linear(2, 3).double(), torch.randn(2, 4, 2, dtype=DOUBLE)
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        squares = 0.5 * (model(batch[0]) - batch[1]).square().sum(2) * batch[2]
        return (squares.sum(1) / batch[2].sum(1)).mean()

    def scalars(model: nn.Module, batch: tuple[Tensor, Tensor]) -> list[Tensor]:
        places = [t for t in range(4) if batch[1][0, t]]
        return [value / len(places) for t in places for value in model(batch[0])[0, t]]

    problem = Problem(net, loss, predict, "gaussian", mask=lambda batch: batch[2])
    found = estimate(problem, dict(net.named_parameters()), [(x, torch.zeros(2, 4, 3), mask)], kind="exact")
    assert_close(found.mean(), by_hand(net, [(x[i : i + 1], mask[i : i + 1]) for i in range(2)], scalars))


# -- where the classes are --------------------------------------------------------------------------------------------


def refused(*parts: str) -> object:
    return pytest.raises(ValueError, match="(?s)" + ".*".join(map(re.escape, parts)))


@pytest.mark.parametrize("kind", [GPT, Transposed])
@PADDED
def test_targets_tell_the_axis_and_the_padding(kind: type[GPT], padded: bool, by_hand, assert_close) -> None:
    model, batch = net(kind), sequences(5, padded)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch[0])
        return token_loss(lambda _: logits.transpose(1, 2) if kind is Transposed else logits, batch)

    problem = Problem(model, loss, predict, "categorical")
    found = estimate(problem, dict(model.named_parameters()), [batch], kind="exact").mean()
    assert_close(found, by_hand(model, singles(batch), exact_by_hand))


def test_labels_of_a_mapping_tell_too(by_hand, assert_close) -> None:
    model, (tokens, targets) = net(), sequences(5, padded=True)
    problem = Problem(
        model,
        lambda model, batch: token_loss(model, (batch["input_ids"], batch["labels"])),
        lambda model, batch: model(batch["input_ids"]),
        "categorical",
    )
    batch = {"input_ids": tokens, "labels": targets}
    found = estimate(problem, dict(model.named_parameters()), [batch], kind="exact").mean()
    assert_close(found, by_hand(model, singles((tokens, targets)), exact_by_hand))


def test_a_shape_that_can_be_read_in_two_ways_is_refused(by_hand, assert_close) -> None:
    """As many tokens as words."""
    model, batch = net(), sequences(VOCABULARY, padded=False)
    weights = dict(model.named_parameters())
    with refused("(1, 7, 7) can be read in two ways", "targets fit", "class_axis=1 or class_axis=2"):
        estimate(Problem(model, token_loss, predict, "categorical"), weights, [batch], kind="exact")
    with refused("(1, 7, 7) can be read in two ways", "mask fit"):
        estimate(problem_of(model), weights, [batch], kind="exact")
    told = Problem(model, token_loss, predict, "categorical", class_axis=-1)
    found = estimate(told, weights, [batch], kind="exact").mean()
    assert_close(found, by_hand(model, singles(batch), exact_by_hand))
    wrong = Problem(model, token_loss, predict, "categorical", class_axis=1)
    with refused("is not the loss that loss_fn gives", "mask="):
        estimate(wrong, weights, [batch], kind="exact")


def shifted_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """As language models of Hugging Face do: a token's logits are of the next token."""
    logits, labels = model(batch["input_ids"])[:, :-1], batch["labels"][:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_shifted_targets_are_not_believed(by_hand, assert_close) -> None:
    model, (tokens, targets) = net(), sequences(6, padded=True)
    targets[:, 1] = targets[:, 0]  # each sequence has a token to predict
    batch, weights = {"input_ids": tokens, "labels": targets}, dict(model.named_parameters())

    def cut(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["input_ids"])[:, :-1]

    whole = Problem(model, shifted_loss, lambda m, b: m(b["input_ids"]), "categorical")
    with refused("is not the loss that loss_fn gives", "[:, :-1]", 'batch["labels"][:, 1:] != -100'):
        estimate(whole, weights, [batch], kind="exact")
    with refused("which axis", "(1, 5, 7)", "class_axis="):
        estimate(Problem(model, shifted_loss, cut, "categorical"), weights, [batch], kind="exact")
    with refused("targets -100 (ignored)", "mask="):
        estimate(Problem(model, shifted_loss, cut, "categorical", class_axis=-1), weights, [batch], kind="exact")
    told = Problem(model, shifted_loss, cut, "categorical", mask=lambda batch: batch["labels"][:, 1:] != -100)
    one_by_one = [(tokens[i : i + 1], targets[i : i + 1, 1:]) for i in range(5)]
    found = estimate(told, weights, [batch], kind="exact").mean()
    assert_close(found, by_hand(model, one_by_one, exact_by_hand))


@pytest.mark.parametrize(
    ("likelihood", "options", "parts"),
    [
        ("categorical", {}, ("which axis of the output holds the classes", "(1, 5, 7)", "class_axis=")),
        ("gaussian", {}, ("which axis of the output holds the outputs", "(1, 5, 7)", "class_axis=")),
        ("categorical", {"class_axis": 0}, ("other than the first", "class_axis=0", "(1, 5, 7)")),
        ("categorical", {"class_axis": 3}, ("other than the first", "class_axis=3")),
        ("categorical", {"mask": lambda batch: batch[0][:, 1:] > 0}, ("without its class axis", "(1, 4)", "(1, 5, 7)")),
        (
            "categorical",
            {"class_axis": 1, "mask": lambda batch: batch[0] > -1},
            ("in shape (5, 7)", "dimension 1", "(5, 5)"),
        ),
    ],
)
def test_what_cannot_be_read_is_refused(likelihood: str, options: dict, parts: tuple[str, ...]) -> None:
    model, (tokens, _) = net(), sequences(5, padded=False)
    problem = Problem(model, lambda m, b: m(b[0]).mean(), predict, likelihood, **options)
    with refused(*parts):
        estimate(problem, {"w": model.head.weight}, [(tokens,)], kind="sample")


def test_auto_is_exact_where_few_objectives_are_needed() -> None:
    batch = sequences(5, padded=False)
    assert choose_kind(problem_of(net()), batch) == "sample"
    small = problem_under(nn.Conv1d(2, 2, 1), nn.CrossEntropyLoss())
    assert choose_kind(small, (torch.zeros(3, 2, 5), torch.zeros(3, 5, dtype=torch.long))) == "exact"


# -- through the guard ------------------------------------------------------------------------------------------------


def learn(guard: EWC | MAS, model: nn.Module, batch: object, loss: Callable, train: Callable = bool, **options) -> None:
    with guard.learning(model, None, batch, loss, **options):
        train()


@PADDED
def test_a_guard_knows_the_criterion_of_torch(padded: bool, by_hand, assert_close) -> None:
    model, (tokens, targets) = net(Transposed), sequences(6, padded)
    other = targets.masked_fill(targets == -100, 3) if not padded else targets.clamp_min(-1)
    guard = EWC(1.0, fisher="exact")
    learn(guard, model, (tokens, other), nn.CrossEntropyLoss(ignore_index=-1))
    assert_close(
        guard.state_dict()["states"]["ewc"]["precision"], by_hand(model, singles((tokens, targets)), exact_by_hand)
    )


@pytest.mark.parametrize("guard", [EWC(1.0, fisher="exact"), EWC(1.0), MAS(1.0)], ids=["exact", "auto", "mas"])
def test_a_guard_refuses_before_anything_is_learned(guard: EWC | MAS) -> None:
    model, batch, trained = net(), sequences(VOCABULARY, padded=False), []
    with refused("can be read in two ways", "class_axis=1 or class_axis=2"):
        learn(guard, model, batch, token_loss, lambda: trained.append(1), likelihood="categorical")
    assert not trained
    learn(guard, model, batch, token_loss, lambda: trained.append(1), likelihood="categorical", class_axis=-1)
    assert trained == [1]


def test_the_preflight_asks_too(capsys) -> None:
    model, batch = net(), sequences(VOCABULARY, padded=False)
    report = EWC(1.0).check(model, None, batch, token_loss, likelihood="categorical", seconds=0.1)
    assert "can be read in two ways" in " ".join(report.warnings)
    padded = sequences(5, padded=True)
    report = EWC(1.0).check(
        model, None, padded, token_loss, mask=lambda b: b[1] != -100, likelihood="categorical", seconds=0.1
    )
    assert "the loss is the mean of its samples' losses" in report.facts
    assert "warning" in capsys.readouterr().out


def test_a_criterion_of_torch_takes_no_mask_and_no_other_axis() -> None:
    model, batch = net(Transposed), sequences(5, padded=False)
    with refused("mask= says which positions", "function (model, batch)"):
        learn(EWC(1.0), model, batch, nn.CrossEntropyLoss(), mask=lambda batch: batch[1] > 0)
    with refused("classes along dimension 1", "class_axis=2", "predict="):
        learn(EWC(1.0), model, batch, nn.CrossEntropyLoss(), class_axis=2)


def test_without_a_mask_a_token_mean_is_no_mean_of_samples() -> None:
    model, batch = net(), sequences(5, padded=True)
    with refused("not the mean", "mask="):
        estimate(Problem(model, token_loss), {"w": model.head.weight}, [batch], kind="empirical")
    with refused("not the mean"):  # a sum stays one, mask or not
        summed = Problem(model, lambda m, b: 9 * len(b[0]) * token_loss(m, b), mask=lambda b: b[1] != -100)
        estimate(summed, {"w": model.head.weight}, [batch], kind="empirical")
