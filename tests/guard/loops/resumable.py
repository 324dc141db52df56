"""Three tasks in a loop that can be left and taken up anywhere; run as a script, it takes up what another process saved.

python resumable.py directory    for each saved <name>.pt there, go on and write <name>.end.pt
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from torch import nn, optim

import afec
from two_tasks import data, plain_loss

TASKS, EPOCHS, BATCH, SAMPLES = 3, 3, 8, 24
SAVED_AT = (1, 1, 1)  # task, epoch, batch: in the middle of the second task's second epoch
OTHERS = {
    "mas": lambda: afec.MAS(0.5),
    "mas-official": lambda: afec.MAS(0.5, preset="official"),
    "si": lambda: afec.SI(20.0),
    "si-official": lambda: afec.SI(20.0, preset="official"),
    "si+afec": lambda: afec.SI(20.0) + afec.AFEC(4.0, epochs=2),
    "rwalk": lambda: afec.RWALK(2.0),
    "rwalk-official": lambda: afec.RWALK(2.0, preset="official") + afec.AFEC(4.0, preset="official"),
}
METHODS = ("ewc", "ewc+afec", "ewc+afec-main", "ewc+afec-expand", "interleaved", "official", *OTHERS)


class Job:
    """All that a run consists of."""

    def __init__(self, name):
        torch.manual_seed(1)
        layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3)]
        self.model = nn.Sequential(*layers)
        self.optimizer = optim.Adam(self.model.parameters(), 0.02)
        self.at, self.forbidden, self.task, self.best = (0, 0, 0), (), 0, None
        self.guard = afec.EWC(50.0, fisher="sample")
        if name in OTHERS:
            self.guard = OTHERS[name]()
        elif name == "official":
            self.guard = afec.EWC(50.0, preset="official") + afec.AFEC(4.0, preset="official")
        elif name == "interleaved":
            self.guard = self.guard + afec.AFEC(4.0, schedule="interleaved", fisher="sample")
        elif name == "ewc+afec-expand":
            self.guard = self.guard + afec.AFEC(4.0, expand=self.expand)
        elif name != "ewc":
            start = "main" if name.endswith("main") else "init"
            self.guard = self.guard + afec.AFEC(4.0, epochs=2, expand_from=start)

    def expand(self):
        """A second expansion of a task that goes on would show here."""
        assert self.task not in self.forbidden, "expanded a second time"
        for _ in range(3):
            self.step(data(self.task + 1, SAMPLES, torch.float32))

    def step(self, batch):
        self.optimizer.zero_grad()
        plain_loss(self.model, batch).backward()
        self.optimizer.step()

    def go_on(self, save=None):
        """From `at` to the end."""
        for number in range(self.at[0], TASKS):
            self.task = number
            x, y = data(number + 1, SAMPLES, torch.float32)
            with self.guard.learning(self.model, self.optimizer, (x, y), nn.CrossEntropyLoss()) as task:
                for epoch in range(self.at[1], EPOCHS):
                    if self.at[2] == 0:
                        task.epoch()
                    if epoch == 1 and self.at[2] == 0:  # as a learner does that keeps the best weights
                        self.best = copy.deepcopy(self.model.state_dict())
                        task.bookmark()
                    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).split(BATCH)
                    for i in range(self.at[2], len(order)):
                        if save is not None and (number, epoch, i) == SAVED_AT:
                            torch.save(self.state(), save)
                        self.step((x[order[i]], y[order[i]]))
                    self.at = (number, epoch + 1, 0)
                if number == 1:
                    self.model.load_state_dict(self.best)
                    task.return_to_bookmark()
                self.at = (number + 1, 0, 0)

    def state(self):
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "guard")}
        return {**parts, "rng": torch.get_rng_state(), "best": self.best}

    def take_up(self, state):
        for name in ("model", "optimizer", "guard"):
            getattr(self, name).load_state_dict(state[name])
        torch.set_rng_state(state["rng"])
        self.best = state["best"]
        self.at, self.forbidden = SAVED_AT, SAVED_AT[:1]
        assert self.guard.in_task
        assert self.guard.tasks_done == 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    for method in METHODS:
        job = Job(method)
        torch.manual_seed(7)  # a fresh process is somewhere else
        job.take_up(torch.load(Path(sys.argv[1]) / f"{method}.pt", weights_only=True))
        job.go_on()
        torch.save(job.state(), Path(sys.argv[1]) / f"{method}.end.pt")
