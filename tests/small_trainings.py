"""Two tasks in Hugging Face's Trainer, small enough for tests; as a script, a training that is killed in its second task.

python tests/small_trainings.py FOLDER STEP    # SIGKILL after this step of the second task; 0: never
torchrun --nproc-per-node 2 tests/small_trainings.py FOLDER 0
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import transformers
from torch import nn, optim

import afec
from afec.integrations.transformers import GuardCallback
from two_tasks import FORGETTING, STRENGTH, data, net


class Classifier(nn.Module):
    """A plain module with a loss, as Trainer wants it; with dropout, so that random numbers matter."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.net, self.dropout = net(), nn.Dropout(dropout)

    def forward(self, x, labels):
        logits = self.net(self.dropout(x))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class KilledAt(transformers.TrainerCallback):
    """The process dies as by `kill -9`."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def rows(number):
    return [{"x": row, "labels": label} for row, label in zip(*data(number), strict=True)]


def batch_of(examples):
    return {key: torch.stack([example[key] for example in examples]) for key in examples[0]}


def batches(number):
    return [batch_of(rows(number)[start : start + 8]) for start in range(0, 24, 8)]


def arguments(folder, **options):
    quiet = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.02,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return transformers.TrainingArguments(output_dir=str(folder), **{**quiet, **options})


def trainer(model, number, folder, callbacks=(), evaluated=None, **options):
    return transformers.Trainer(
        model,
        arguments(folder, **options),
        data_collator=batch_of,
        train_dataset=rows(number),
        eval_dataset=evaluated,
        callbacks=list(callbacks),
    )


def guard(kind="ewc+afec"):
    ewc = afec.EWC(STRENGTH, fisher="empirical")
    if kind == "ewc":
        return ewc
    how = {"optimizer": lambda params: optim.Adam(params, 0.02), "fisher": "empirical"}
    if kind == "interleaved":
        return ewc + afec.AFEC(FORGETTING, schedule="interleaved", **how)
    return ewc + afec.AFEC(FORGETTING, epochs=3, **how)


SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 9, "num_train_epochs": 3}


def learn_two_tasks(folder, step=0, kind="interleaved", dropout=0.3, batch=8, data=None):
    """The model and the guard after two tasks; checkpoints of the second one are in the folder.

    `data` are the batches that θ_e is learned from, where they shall not depend on the trainer's batch size.
    """
    torch.manual_seed(0)
    model, own = Classifier(dropout), guard(kind)
    size = {"per_device_train_batch_size": batch}
    trainer(model, 1, folder / "first", [GuardCallback(own)], **size).train()
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(model.state_dict(), folder / "first.pt")
    last = trainer(model, 2, folder / "second", [GuardCallback(own, data=data), KilledAt(step)], **SAVING, **size)
    last.train()
    return model, own


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = Path(sys.argv[1])
    # Two processes share each batch, so that the gradients are those of one.
    world = int(os.environ.get("WORLD_SIZE", 1))
    alone = {"kind": "interleaved"} if world == 1 else {"kind": "ewc+afec", "dropout": 0.0, "data": batches(2)}
    found = learn_two_tasks(here, int(sys.argv[2]), batch=8 // world, **alone)
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(found[0].state_dict(), here / "model.pt")
        found[1].save(here / "guard.safetensors")
    if world > 1:
        torch.distributed.barrier()
        sys.stdout.flush()
        os._exit(0)  # threads of gloo may outlive their process group, and abort the interpreter
