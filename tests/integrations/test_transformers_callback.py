"""GuardCallback in Hugging Face's Trainer and TRL's: each training is one task, and nothing is lost when it breaks off."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn, optim

import afec
from afec.files import FileError, load_tree
from two_tasks import KINDS, Penalty, apart, equal

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import small_trainings  # noqa: E402
from afec.integrations.transformers import FILE, GuardCallback  # noqa: E402
from small_trainings import SAVING, Classifier, batch_of, batches, guard, rows, trainer  # noqa: E402

SCRIPT = Path(small_trainings.__file__)


class Seen(transformers.TrainerCallback):
    """The penalty as it was when the training began, and what was logged."""

    def __init__(self, guard):
        self.guard, self.logs = guard, []

    def on_train_begin(self, args, state, control, **kwargs):
        self.penalty = Penalty(self.guard)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def by_hand(model, penalty, batches, clip, accumulate, both):
    optimizer = optim.AdamW(model.parameters(), 0.02, weight_decay=0.0)
    for start in range(0, len(batches), accumulate):
        group = batches[start : start + accumulate]
        for batch in group:
            (model(**batch)["loss"] / len(group)).backward()
        if both:
            penalty.add_to_grads(model)
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        if not both:
            penalty.add_to_grads(model)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("accumulate", "both"), [(1, False), (3, False), (1, True), (3, True)])
def test_train_is_autograd_on_loss_plus_penalty(accumulate, both, kind, tmp_path):
    model, own = Classifier(), guard(kind)
    options = {
        "max_grad_norm": 0.05,
        "gradient_accumulation_steps": accumulate,
        "train_sampling_strategy": "sequential",
    }
    for number in (1, 2):
        twin, free = copy.deepcopy(model), copy.deepcopy(model)
        seen = Seen(own)
        trainer(model, number, tmp_path, [GuardCallback(own, clip_pull=both), seen], **options).train()
    assert own.tasks_done == 2
    assert not own.in_task
    assert len(seen.penalty.terms) == 1 + (kind != "ewc")
    by_hand(twin, seen.penalty, batches(2) * 2, 0.05, accumulate, both)
    trainer(free, 2, tmp_path, **options).train()
    assert apart(free, twin) > 1e-3
    assert apart(model, twin) < 1e-8


def test_penalties_are_in_the_logs(tmp_path):
    model, own = Classifier(), guard()
    values = {}

    class Asking(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            values[state.global_step] = {name: float(value) for name, value in own.task.penalties().items()}

    for number in (1, 2):
        seen = Seen(own)
        callbacks = [seen, Asking(), GuardCallback(own)]  # those before it see the penalties, too
        last = trainer(model, number, tmp_path, callbacks, logging_strategy="steps", logging_steps=2)
        last.train()
    steps = [log for log in seen.logs if "loss" in log]
    assert len(steps) == 3
    for number, log in enumerate(steps, 1):
        assert log["penalty_old"] == values[2 * number]["old"] > 0
        assert log["penalty_forgetting"] == values[2 * number]["forgetting"] > 0
    kept = [log for log in last.state.log_history if "loss" in log]
    assert [log["penalty_old"] for log in kept] == [log["penalty_old"] for log in steps]


class Failing(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        raise KeyboardInterrupt


def test_an_exception_drops_the_task(tmp_path):
    model, own = Classifier(), guard("ewc")
    trainer(model, 1, tmp_path, [GuardCallback(own)]).train()
    before = own.state_dict()
    callback = GuardCallback(own, clip_pull=True)
    failing = trainer(model, 2, tmp_path, [callback, Failing()])
    with pytest.raises(KeyboardInterrupt):
        failing.train()
    assert not own.in_task
    assert own.state_dict() == before  # the very same tensors
    assert "clip_grad_norm_" not in vars(failing.accelerator)
    trainer(model, 2, tmp_path, [callback]).train()  # the same callback, in another trainer
    assert own.tasks_done == 2


@pytest.mark.parametrize("kind", ["ewc+afec", "interleaved"])
def test_resume_is_as_if_never_interrupted(kind, tmp_path):
    """From every checkpoint, those in the middle of an epoch too (3 steps each)."""
    whole, wholly = small_trainings.learn_two_tasks(tmp_path, kind=kind)
    for step in (2, 4, 6, 8):
        model, own = Classifier(0.3), guard(kind)
        model.load_state_dict(torch.load(tmp_path / "first.pt"))
        again = trainer(model, 2, tmp_path / "again", [GuardCallback(own)], **SAVING)
        again.train(resume_from_checkpoint=str(tmp_path / "second" / f"checkpoint-{step}"))
        assert equal(model, whole)
        assert_same_guard(own, wholly)


def assert_same_guard(one, other):
    one, other = one.state_dict(), other.state_dict()
    assert one["tasks_done"] == other["tasks_done"] == 2
    for part in ("mean", "precision"):
        for name, value in other["states"]["ewc"][part].items():
            assert torch.equal(one["states"]["ewc"][part][name], value)


def environment():
    return {**os.environ, "PYTHONPATH": f"{SCRIPT.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.slow
def test_killed_in_the_second_task_and_resumed(tmp_path):
    killed, free = tmp_path / "killed", tmp_path / "free"
    killed.mkdir()
    free.mkdir()
    run = subprocess.run([sys.executable, SCRIPT, killed, "5"], env=environment(), capture_output=True, text=True)
    assert run.returncode == -9, run.stderr
    assert not (killed / "model.pt").exists()
    whole, wholly = small_trainings.learn_two_tasks(free)
    model, own = Classifier(0.3), guard("interleaved")
    last = trainer(model, 2, killed / "second", [GuardCallback(own)], **SAVING)
    last.train(resume_from_checkpoint=True)
    assert equal(model, whole)
    assert_same_guard(own, wholly)
    loaded = guard("interleaved")
    loaded.load(killed / "second" / FILE)  # the consolidated guard is beside the checkpoints
    assert_same_guard(loaded, wholly)


@pytest.mark.slow
def test_two_processes_learn_what_one_does(tmp_path):
    """Accelerate's DDP on gloo: half a batch each; θ_e of the first process from all data, the Fisher from both halves."""
    (tmp_path / "two").mkdir()
    (tmp_path / "one").mkdir()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, str(SCRIPT), str(tmp_path / "two"), "0"]
    run = subprocess.run(command, env={**environment(), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    model, own = small_trainings.learn_two_tasks(tmp_path / "one", kind="ewc+afec", dropout=0.0, data=batches(2))
    twin, other = Classifier(), guard()
    twin.load_state_dict(torch.load(tmp_path / "two" / "model.pt"))
    other.load(tmp_path / "two" / "guard.safetensors")
    assert apart(model, twin) < 1e-9
    for name, value in own.state_dict()["states"]["ewc"]["precision"].items():
        torch.testing.assert_close(other.state_dict()["states"]["ewc"]["precision"][name], value, rtol=1e-9, atol=1e-12)


def test_what_cannot_be_resumed_is_said(tmp_path):
    model, own = Classifier(), guard("ewc")
    trainer(model, 1, tmp_path, **{**SAVING, "max_steps": 4}).train()  # without the callback
    with pytest.raises(
        FileError, match=r"checkpoint-4 has no guard\.safetensors: it was saved without a GuardCallback"
    ):
        trainer(model, 1, tmp_path, [GuardCallback(own)], **SAVING).train(resume_from_checkpoint=True)
    assert not own.in_task
    restoring = trainer(
        model, 1, tmp_path, [GuardCallback(own)], restore_callback_states_from_checkpoint=True, **SAVING
    )
    with pytest.raises(ValueError, match="would make a new GuardCallback without its guard"):
        restoring.train(resume_from_checkpoint=True)
    two = trainer(model, 1, tmp_path, [GuardCallback(own), GuardCallback(afec.SI(1))])
    with pytest.raises(ValueError, match="add the methods instead"):
        two.train()
    with pytest.raises(TypeError, match="GuardCallback needs a guard"):
        GuardCallback(own.method)


def test_the_best_model_is_what_is_consolidated(tmp_path):
    model, own = Classifier(), guard("ewc")
    options = {
        **SAVING,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "learning_rate": 0.5,  # so that the last weights are not the best
    }
    last = trainer(model, 1, tmp_path, [GuardCallback(own)], rows(3), **options)
    last.train()
    assert last.state.best_global_step < last.state.global_step
    mean = own.state_dict()["states"]["ewc"]["mean"]
    for name, weight in model.named_parameters():
        assert torch.equal(mean[name], weight)
    saved = load_tree(tmp_path / f"checkpoint-{last.state.best_global_step}" / FILE)
    assert saved["guard"]["task_states"] is not None


# -- language models --------------------------------------------------------------------------------------------------


def gpt(dtype=torch.float32, **options):
    config = transformers.GPT2Config(
        vocab_size=16,
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        **options,
    )
    return transformers.GPT2LMHeadModel(config).to(dtype)


def texts(number):
    tokens = torch.randint(0, 16, (16, 8), generator=torch.Generator().manual_seed(number))
    labels = tokens.clone()
    labels[::2, 5:] = -100
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def text_trainer(model, number, folder, own, **options):
    arguments = small_trainings.arguments(folder, **{"learning_rate": 0.003, **options})
    return transformers.Trainer(
        model, arguments, data_collator=batch_of, train_dataset=texts(number), callbacks=[GuardCallback(own)]
    )


SETTINGS = {
    "plain": ({}, torch.float32),
    "gradient-checkpointing": ({"gradient_checkpointing": True}, torch.float32),
    "bf16-weights": ({}, torch.bfloat16),
}


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_language_model_is_read_by_itself(setting, tmp_path):
    """The true Fisher of next tokens, padding left out, without a word from the user; and the pull holds."""
    options, dtype = SETTINGS[setting]
    moved = {}
    for strength in (1.0, 1e7):
        torch.manual_seed(0)
        model, own = gpt(dtype), afec.EWC(strength)
        text_trainer(model, 1, tmp_path, own, **options).train()
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        text_trainer(model, 2, tmp_path, own, **options).train()
        now = own.state_dict()["states"]["ewc"]["mean"]
        moved[strength] = sum(float((now[name].float() - value.float()).pow(2).sum()) for name, value in before.items())
        assert all(bool(f.isfinite().all()) for f in own.state_dict()["states"]["ewc"]["precision"].values())
    assert 0 < moved[1e7] < 0.7 * moved[1.0]


def test_the_fisher_of_next_tokens(tmp_path):
    """`exact` by hand: Σ_t over the positions that count of Σ_c p_c (∂ log p_c)², over T² (docs/fisher.md)."""
    torch.manual_seed(0)
    model, own = gpt(torch.float64), afec.EWC(1, fisher="exact", params=None)
    text_trainer(model, 1, tmp_path, own, max_steps=1).train()
    found = own.state_dict()["states"]["ewc"]["precision"]["transformer.ln_f.bias"]
    model.eval()
    total = torch.zeros_like(found)
    weight = model.transformer.ln_f.bias
    for row in texts(1):
        logs = model(row["input_ids"][None]).logits[0, :-1].log_softmax(-1)
        counted = (row["labels"][1:] != -100).nonzero().flatten().tolist()
        for position in counted:
            for log in logs[position]:
                (grad,) = torch.autograd.grad(log, weight, retain_graph=True)
                total += log.exp().detach() * grad**2 / len(counted) ** 2 / 16
    torch.testing.assert_close(found, total, rtol=1e-8, atol=1e-14)


def test_a_loss_of_the_trainers_own(tmp_path):
    """Label smoothing: the Fisher belongs to what is minimised."""
    found = {}
    for smoothing in (0.0, 0.5):
        torch.manual_seed(0)
        model, own = gpt(torch.float64), afec.EWC(1, fisher="empirical")
        text_trainer(model, 1, tmp_path, own, max_steps=1, learning_rate=0.0, label_smoothing_factor=smoothing).train()
        found[smoothing] = own.state_dict()["states"]["ewc"]["precision"]["transformer.ln_f.bias"]
    assert float((found[0.0] - found[0.5]).abs().max()) > 0.05 * float(found[0.0].max())


def test_importing_afec_imports_no_trainer():
    code = (
        "import sys, afec; afec.EWC, afec.Learner; assert not {'transformers', 'lightning', 'wandb'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
