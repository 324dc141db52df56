"""Hugging Face's Trainer: accelerate's wrapped optimiser, clipping at 1.0 by default."""

import copy

import pytest
import torch
from torch import nn, optim

import afec
from two_tasks import FORGETTING, KINDS, STRENGTH, Penalty, apart, data, net

pytestmark = pytest.mark.slow  # importing the trainer takes seconds

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


class Classifier(nn.Module):
    """A plain module with a loss, as Trainer wants it."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def bert():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(vocab_size=12, max_position_embeddings=8, num_labels=3, **sizes, **quiet)
    return transformers.BertForSequenceClassification(config).double()


def rows(kind, number):
    x, y = data(number)
    if kind == "bert":
        return [{"input_ids": (3 * row).long() % 12, "labels": label} for row, label in zip(x, y, strict=True)]
    return [{"x": row, "labels": label} for row, label in zip(x, y, strict=True)]


def loss_of(model, batch):
    return model(**batch)["loss"]


def batch_of(examples):
    return {key: torch.stack([example[key] for example in examples]) for key in examples[0]}


def trainer(model, dataset, folder, seen=None, **options):
    """`seen` gets the batches in the order of the training."""

    def collate(examples):
        batch = batch_of(examples)
        if seen is not None:
            seen.append(batch)
        return batch

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=0.02,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
    )
    return transformers.Trainer(model, arguments, data_collator=collate, train_dataset=dataset)


def reference(model, penalty, seen, clip, accumulate=1):
    """By hand: the penalty's gradient comes after the clipping that Trainer does by default."""
    optimizer = optim.AdamW(model.parameters(), 0.02, weight_decay=0.0)
    for start in range(0, len(seen), accumulate):
        group = seen[start : start + accumulate]
        for batch in group:
            (loss_of(model, batch) / len(group)).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        penalty.add_to_grads(model)
        optimizer.step()
        optimizer.zero_grad()


def build(method):
    guard = afec.EWC(STRENGTH, fisher="empirical")
    if method == "ewc":
        return guard
    how = {"epochs": 3, "optimizer": lambda params: optim.Adam(params, 0.02), "fisher": "empirical"}
    return guard + afec.AFEC(FORGETTING, **how)


SETTINGS = {
    "default": ({}, 1.0, 1),
    "clipped-hard": ({"max_grad_norm": 0.01}, 0.01, 1),
    "not-clipped": ({"max_grad_norm": 0.0}, None, 1),
    "accumulate": ({"gradient_accumulation_steps": 3, "max_grad_norm": 0.01}, 0.01, 3),
}


# (BERT's loss takes keyword arguments, so Trainer does not divide it by the accumulated steps: no accumulation there.)
@pytest.mark.parametrize(("setting", "kind"), [*((setting, "module") for setting in SETTINGS), ("default", "bert")])
@pytest.mark.parametrize("method", KINDS)
def test_train_is_autograd_on_loss_plus_penalty(setting, kind, method, tmp_path):
    options, clip, accumulate = SETTINGS[setting]
    model = bert() if kind == "bert" else Classifier()
    guard = build(method)
    for number in (1, 2):
        dataset, seen = rows(kind, number), []
        model.zero_grad()
        twin, free = copy.deepcopy(model), copy.deepcopy(model)
        batches = [batch_of(dataset[start : start + 8]) for start in range(0, 24, 8)]
        with guard.learning(model, None, batches, loss_of):
            penalty = Penalty(guard)
            trainer(model, dataset, tmp_path, seen, **options).train()
    assert len(penalty.terms) == 1 + (method != "ewc")
    assert len(seen) == 6
    reference(twin, penalty, seen, clip, accumulate)
    trainer(free, dataset, tmp_path, **options).train()
    assert apart(free, twin) > 1e-3
    assert apart(model, twin) < 1e-8


def test_theta_e_trained_by_the_trainer_itself(tmp_path):
    model, dataset = Classifier(), rows("module", 2)
    init, started = copy.deepcopy(model), None
    batches = [batch_of(dataset[start : start + 8]) for start in range(0, 24, 8)]
    expand = afec.AFEC(FORGETTING, expand=lambda: trainer(model, dataset, tmp_path).train(), fisher="empirical")
    guard = afec.EWC(STRENGTH, fisher="empirical") + expand
    for number in (1, 2):
        started = copy.deepcopy(model.state_dict())
        with guard.learning(model, None, batches, loss_of):
            assert all(torch.equal(started[name], value) for name, value in model.state_dict().items())
            if number == 2:
                theta_e = guard.state_dict()["task_states"]["afec"]["mean"]
            trainer(model, rows("module", number), tmp_path).train()
    trainer(init, dataset, tmp_path).train()
    for name, weight in init.named_parameters():
        torch.testing.assert_close(theta_e[name], weight.detach(), rtol=0, atol=1e-9)
