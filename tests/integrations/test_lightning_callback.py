"""GuardCallback in Lightning's Trainer: each fit is one task, and its checkpoints hold the guard."""

import copy
import os
import signal

import pytest
import torch
from torch import nn, optim

import afec
from small_processes import killed
from two_tasks import FORGETTING, KINDS, STRENGTH, Penalty, apart, data, equal, loader, net

lightning = pytest.importorskip("lightning")

from afec.integrations.lightning import GuardCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*isinstance.treespec, LeafSpec.",
    "ignore:.*`isinstance\\(treespec",
    "ignore:.*number of training batches",
    "ignore:.*tensorboardX",
    "ignore:.*Checkpoint directory",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:.*You're resuming from a checkpoint that ended before the epoch ended",
)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return optim.AdamW(self.parameters(), 0.02)


class Seen(lightning.Callback):
    """The penalty as it was when training began, and the metrics of every step."""

    def __init__(self, guard):
        self.guard, self.metrics, self.values = guard, [], []

    def on_train_start(self, trainer, module):
        self.penalty = Penalty(self.guard)

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.metrics.append({name: float(value) for name, value in trainer.callback_metrics.items()})
        self.values.append({name: float(value) for name, value in self.guard.task.penalties().items()})


def trainer(*callbacks, epochs=2, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        callbacks=list(callbacks),
        **{"enable_checkpointing": False, **quiet, **options},
    )


def guard(kind):
    own = afec.EWC(STRENGTH)
    if kind == "ewc":
        return own
    if kind == "interleaved":
        return own + afec.AFEC(FORGETTING, schedule="interleaved")
    return own + afec.AFEC(FORGETTING, epochs=5)  # by the optimiser of the module, built anew


def callback(own, **options):
    return GuardCallback(own, nn.CrossEntropyLoss(), **options)


def by_hand(module, penalty, clip, accumulate, both):
    optimizer = module.configure_optimizers()
    for _ in range(2):
        for number, batch in enumerate(loader(data(2)), 1):
            (module.training_step(batch, 0) / accumulate).backward()
            if number % accumulate and number != 3:
                continue
            if both:
                penalty.add_to_grads(module)
            nn.utils.clip_grad_norm_(module.parameters(), clip)
            if not both:
                penalty.add_to_grads(module)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("accumulate", "both"), [(1, False), (2, False), (1, True), (2, True)])
def test_fit_is_autograd_on_loss_plus_penalty(accumulate, both, kind):
    module, own = Module(), guard(kind)
    options = {"gradient_clip_val": 0.05, "accumulate_grad_batches": accumulate}
    for number in (1, 2):
        module.trainer = None
        twin, free, seen = copy.deepcopy(module), copy.deepcopy(module), Seen(own)
        trainer(callback(own, clip_pull=both), seen, **options).fit(module, loader(data(number)))
    assert own.tasks_done == 2
    assert not own.in_task
    assert len(seen.penalty.terms) == 1 + (kind != "ewc")
    by_hand(twin, seen.penalty, 0.05, accumulate, both)
    trainer(**options).fit(free, loader(data(2)))
    assert apart(free, twin) > 1e-3
    assert apart(module, twin) < 1e-9


def test_penalties_are_logged():
    module, own = Module(), guard("ewc+afec")
    for number in (1, 2):
        seen = Seen(own)
        trainer(callback(own), seen, log_every_n_steps=1).fit(module, loader(data(number)))
    for metrics, values in zip(seen.metrics, seen.values, strict=True):
        assert metrics["penalty_old"] == pytest.approx(values["old"], rel=1e-6)
        assert metrics["penalty_forgetting"] == pytest.approx(values["forgetting"], rel=1e-6)
    assert seen.values[-1]["old"] > 0


class Failing(lightning.Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, module, batch, number):
        if trainer.global_step == self.step:
            raise RuntimeError("the disk is full")


def test_an_exception_drops_the_task():
    module, own = Module(), guard("ewc")
    trainer(callback(own)).fit(module, loader(data(1)))
    before = own.state_dict()
    failed = callback(own)
    with pytest.raises(RuntimeError, match="the disk is full"):
        trainer(failed, Failing(2)).fit(module, loader(data(2)))
    assert not own.in_task
    assert own.state_dict() == before
    # ModelCheckpoint(save_on_exception=True) writes after the abort, and still gets the task.
    assert failed.state_dict()["guard"]["task_states"] is not None
    trainer(callback(own)).fit(module, loader(data(2)))
    assert own.tasks_done == 2


@pytest.mark.parametrize("kind", ["ewc+afec", "interleaved"])
def test_resume_is_as_if_never_interrupted(kind, tmp_path):
    module, own = Module(), guard(kind)
    trainer(callback(own)).fit(module, loader(data(1)))
    module.trainer = None
    start, known = copy.deepcopy(module), copy.deepcopy(own.state_dict())
    trainer(callback(own), epochs=4).fit(module, loader(data(2)))

    broken, other = copy.deepcopy(start), guard(kind)
    other.load_state_dict(known)
    saver = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, save_last=True, every_n_epochs=1)
    with pytest.raises(RuntimeError, match="the disk is full"):  # in the second epoch
        trainer(saver, Failing(4), callback(other), epochs=4, enable_checkpointing=True).fit(broken, loader(data(2)))
    file = tmp_path / "last.ckpt"

    resumed, fresh = Module(), guard(kind)
    trainer(callback(fresh), epochs=4).fit(resumed, loader(data(2)), ckpt_path=str(file), weights_only=False)
    assert equal(resumed, module)
    assert fresh.tasks_done == 2
    for part in ("mean", "precision"):
        for name, value in own.state_dict()["states"]["ewc"][part].items():
            assert torch.equal(fresh.state_dict()["states"]["ewc"][part][name], value)


class Stateful(torch.utils.data.DataLoader):
    """Knows which batch comes next, as torchdata's StatefulDataLoader does."""

    given = 0

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number >= self.given:
                self.given = number + 1
                yield batch
        self.given = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


def broken_off_in_mid_epoch(kind, folder, kept):
    """A checkpoint after the fifth step of three an epoch, and what came of a module and a guard that went on."""

    def batches(number):
        tensors = torch.utils.data.TensorDataset(*data(number))
        return (Stateful if kept else torch.utils.data.DataLoader)(tensors, 8)

    module, own = Module(), guard(kind)
    trainer(callback(own)).fit(module, batches(1))
    module.trainer = None
    broken, other = copy.deepcopy(module), guard(kind)
    other.load_state_dict(copy.deepcopy(own.state_dict()))
    trainer(callback(own), epochs=3).fit(module, batches(2))
    saver = lightning.pytorch.callbacks.ModelCheckpoint(folder, save_last=True, every_n_train_steps=5)
    with pytest.raises(RuntimeError, match="the disk is full"):
        trainer(saver, Failing(5), callback(other), epochs=3, enable_checkpointing=True).fit(broken, batches(2))
    return str(folder / "last.ckpt"), batches(2), module, own


@pytest.mark.parametrize("kind", ["ewc+afec", "interleaved"])
def test_resume_in_mid_epoch_is_as_if_never_interrupted(kind, tmp_path):
    file, batches, module, own = broken_off_in_mid_epoch(kind, tmp_path, kept=True)
    resumed, fresh = Module(), guard(kind)
    trainer(callback(fresh), epochs=3).fit(resumed, batches, ckpt_path=file, weights_only=False)
    assert equal(resumed, module)
    for part in ("mean", "precision"):
        for name, value in own.state_dict()["states"]["ewc"][part].items():
            assert torch.equal(fresh.state_dict()["states"]["ewc"][part][name], value)


class Killed(Failing):
    def on_train_batch_start(self, trainer, module, batch, number):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def learn_two_tasks(folder, step):
    """With a checkpoint after every second step of the second task, which has three an epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, own = Module(), guard("ewc+afec")
    trainer(callback(own)).fit(module, loader(data(1)))
    saver = lightning.pytorch.callbacks.ModelCheckpoint(folder, save_last=True, every_n_train_steps=2)
    second = trainer(saver, Killed(step), callback(own), epochs=3, enable_checkpointing=True)
    second.fit(module, Stateful(loader(data(2)).dataset, 8))
    return module, own


@pytest.mark.slow
def test_killed_in_mid_epoch_and_resumed(tmp_path):
    killed(learn_two_tasks, tmp_path / "killed", 5)
    module, own = learn_two_tasks(tmp_path / "whole", -1)
    resumed, fresh = Module(), guard("ewc+afec")
    file, batches = tmp_path / "killed" / "last.ckpt", Stateful(loader(data(2)).dataset, 8)
    trainer(callback(fresh), epochs=3).fit(resumed, batches, ckpt_path=file, weights_only=False)
    assert equal(resumed, module)
    for part in ("mean", "precision"):
        for name, value in own.state_dict()["states"]["ewc"][part].items():
            assert torch.equal(fresh.state_dict()["states"]["ewc"][part][name], value)


def test_resume_in_mid_epoch_is_refused_where_the_next_batch_is_not_known(tmp_path):
    file, batches, module, _ = broken_off_in_mid_epoch("ewc", tmp_path, kept=False)
    resumed, fresh = Module(), guard("ewc")
    with pytest.raises(
        ValueError, match="saved after 2 batches of an epoch, .* StatefulDataLoader.* exact_resume=False"
    ):
        trainer(callback(fresh), epochs=3).fit(resumed, batches, ckpt_path=file, weights_only=False)
    assert not fresh.in_task
    again = callback(guard("ewc"), exact_resume=False)
    trainer(again, epochs=3).fit(resumed, batches, ckpt_path=file, weights_only=False)
    assert again.guard.tasks_done == 2
    assert not equal(resumed, module)  # Lightning gave the first batch again


def test_a_strength_that_follows_the_validation_loss():
    class Validating(Module):
        def validation_step(self, batch, number):
            self.log("val_loss", self.training_step(batch, number))

    module, own = Validating(), afec.EWC("auto", reference_epochs=2)
    paths = []

    class Path(lightning.Callback):
        def on_train_end(self, trainer, module):
            paths.append(own.task.strengths())

    for number in (1, 2):
        fit = trainer(Path(), callback(own, epoch_loss="val_loss"), epochs=4, num_sanity_val_steps=0)
        fit.fit(module, loader(data(number)), loader(data(number + 10)))
    assert len(paths[1]["ewc"]) == 4  # the first, and one after each epoch that another one followed
    assert len(set(paths[1]["ewc"])) > 1
