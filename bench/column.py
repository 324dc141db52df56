"""A column of the paper's Table 2 in CPU time, ours beside the released procedure: `python bench/column.py` (CIFAR-100-SC).

Nine rows, one seed, at the same epochs on the same data: `finetune`, and EWC, MAS, SI and RWALK with and without AFEC. Ours is
one `afec run`, start-up included: rows share the first task and θ_e where no method touches them. Theirs is a plain loop in our
own words of what the released code does for each row: every row trains everything, images lie in memory as PyTorch has them by
default, penalties go through autograd, θ_e is trained beside θ with a new F_e in every epoch, and after each epoch the training
images are looked at once more. Reading the files, progress bars and start-up are not in it.

CPU seconds of both, the ratio, and what it is made of. Few images and epochs: minutes. AFEC_DATA says where the files are.
"""

from __future__ import annotations

import argparse
import copy
import math
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from afec.data import DataError
from afec.lab import RunDirectory, study
from afec.nets.cnn6 import CNN6
from afec.streams import Split, Stream, Task, make_stream
from pay import ROWS

BATCH, GROUP, PATIENCE = 256, 20, 5
STRENGTH = {"finetune": 0.0, "ewc": 40_000.0, "mas": 16.0, "si": 8.0, "rwalk": 128.0}
Weights = dict[str, Tensor]


class Net(nn.Module):
    """The paper's net with all heads from the start; all of them answer."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.backbone, self.heads = CNN6(), nn.ModuleList(nn.Linear(256, 5) for _ in range(tasks))

    def forward(self, x: Tensor) -> list[Tensor]:
        """The logits of every head."""
        features = self.backbone(x)
        return [head(features) for head in self.heads]


@dataclass(frozen=True)
class Data:
    """One task, normalised: images and labels to learn from, for validation, and to test on."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @property
    def size(self) -> int:
        """How many images there are to learn from."""
        return len(self.train[0])


@dataclass
class Released:
    """The released procedure for one row, and the CPU seconds and passes over images that each of its parts took."""

    row: str
    epochs: int
    seconds: Counter[str] = field(default_factory=Counter)
    images: Counter[str] = field(default_factory=Counter)

    def learn(self, tasks: list[Data]) -> None:
        """All tasks, one after the other."""
        self.method, _, more = self.row.partition("+")
        afec = bool(more)
        net = Net(len(tasks))
        other = copy.deepcopy(net)  # θ_e: carried from task to task
        self.importance = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        self.running = {name: torch.zeros_like(p) for name, p in net.named_parameters()}  # RWALK's F of the steps
        self.scores = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        for t, data in enumerate(tasks):
            self.t, self.anchor, self.start = t, values(net), values(net)
            self.path = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
            lr, left, best, kept = 1e-3, PATIENCE, math.inf, values(net)
            optimizer, optimizer_e = Adam(net.parameters(), lr), Adam(other.parameters(), lr)
            for _ in range(self.epochs):
                pulls: list[Callable[[], Tensor]] = [lambda: self.old(net)] if t and self.method != "finetune" else []
                if afec:
                    with self.timed("training", data.train):
                        self.epoch(other, optimizer_e, data.train, [])
                    with self.timed("Fisher", data.train):
                        fisher, theta = self.fisher(other, data.train), values(copy.deepcopy(other))
                    if t:
                        pulls.append(lambda f=fisher, w=theta: self.forgetting(net, f, w))
                with self.timed("training", data.train):
                    self.epoch(net, optimizer, data.train, pulls, watched=self.method in ("si", "rwalk"))
                with self.timed("evaluation", data.train):
                    self.evaluate(net, data.train, t)
                with self.timed("evaluation", data.validation):
                    loss = self.evaluate(net, data.validation, t)
                if loss < best:
                    best, left, kept = loss, PATIENCE, values(net)
                    continue
                left -= 1
                if left == 0:
                    lr, left = lr / 3, PATIENCE
                    optimizer, optimizer_e = Adam(net.parameters(), lr), Adam(other.parameters(), lr)
            net.load_state_dict(kept)
            with self.timed("Fisher", data.train if self.method in ("ewc", "mas", "rwalk") else None):
                self.consolidate(net, data.train)
            for number, earlier in enumerate(tasks[: t + 1]):
                with self.timed("evaluation", earlier.test):
                    self.evaluate(net, earlier.test, number)

    @contextmanager
    def timed(self, part: str, data: tuple[Tensor, Tensor] | None) -> Iterator[None]:
        """Count the block and its images as this part."""
        start = time.process_time()
        yield
        spent = time.process_time() - start
        self.seconds.update({part: spent, "all": spent, "later tasks": spent if self.t else 0.0})
        self.images[part] += 0 if data is None else len(data[0])

    def epoch(self, net: nn.Module, optimizer: Adam, data: tuple[Tensor, Tensor], pulls, watched: bool = False) -> None:
        """One pass in mini-batches; SI and RWALK look at every step."""
        net.train()
        for rows in torch.randperm(len(data[0])).split(BATCH):
            loss = F.cross_entropy(net(data[0][rows])[self.t], data[1][rows])
            for pull in pulls:
                loss = loss + pull()
            optimizer.zero_grad()
            loss.backward()
            before = values(net) if watched else {}
            optimizer.step()
            for name, p in net.named_parameters() if watched else ():
                if p.grad is not None:
                    change = p.detach() - before[name]
                    self.path[name] -= p.grad * change
                    if self.method == "rwalk":
                        self.running[name] = 0.9 * p.grad**2 + 0.1 * self.running[name]
                        self.scores[name] -= p.grad * change / (0.5 * self.running[name] * change**2 + 0.01)

    def evaluate(self, net: nn.Module, data: tuple[Tensor, Tensor], task: int) -> float:
        """The mean loss with the old penalty, batch by batch; the graph is built, as it is there."""
        net.eval()
        total = 0.0
        for x, y in zip(data[0].split(BATCH), data[1].split(BATCH), strict=True):
            outputs = net(x)[task]
            loss = F.cross_entropy(outputs, y)
            if self.t and self.method != "finetune" and self.row != "si+afec":
                loss = loss + self.old(net)
            (outputs.argmax(1) == y).sum().item()
            total += loss.item() * len(y)
        return total / len(data[0])

    def old(self, net: nn.Module) -> Tensor:
        """The pull to the old tasks, over all parameters."""
        terms = [(self.importance[n] * (p - self.anchor[n]) ** 2).sum() for n, p in net.named_parameters()]
        return STRENGTH[self.method] / 2 * sum(terms, torch.zeros(()))

    def forgetting(self, net: nn.Module, fisher: Weights, theta: Weights) -> Tensor:
        """The pull to θ_e, heads left out."""
        named = [(n, p) for n, p in net.named_parameters() if not n.startswith("heads")]
        return 0.5 * sum(((fisher[n] * (p - theta[n]) ** 2).sum() for n, p in named), torch.zeros(()))

    def consolidate(self, net: nn.Module, data: tuple[Tensor, Tensor]) -> None:
        """The importance after a task."""
        old, t = self.importance, self.t
        if self.method == "ewc":
            new = self.fisher(net, data)
            self.importance = {n: (new[n] + t * old[n]) / (t + 1) for n in old}
        elif self.method == "mas":
            new = self.passed(net, data, lambda outputs, y: outputs.norm(dim=1).sum(), torch.abs)
            self.importance = {n: old[n] + new[n] / len(data[0]) for n in old}
        elif self.method == "si":
            moved = {n: p - self.start[n] for n, p in values(net).items()}
            self.importance = {n: old[n] + self.path[n] / (moved[n] ** 2 + 0.01) for n in old}
        elif self.method == "rwalk":
            new = self.fisher(net, data)
            self.importance = {n: new[n] + 0.5 * self.scores[n] for n in old}

    def fisher(self, net: nn.Module, data: tuple[Tensor, Tensor]) -> Weights:
        """(20/N)·Σ_b (gradient of the mean loss of 20 samples)², dropout on."""
        found = self.passed(net, data, F.cross_entropy, torch.square)
        return {name: GROUP * value / len(data[0]) for name, value in found.items()}

    def passed(self, net: nn.Module, data: tuple[Tensor, Tensor], loss, of: Callable[[Tensor], Tensor]) -> Weights:
        """Σ_b of(gradient) over batches of 20; the gradients are added up as well, which nobody uses."""
        net.train()
        sums, unused = ({n: torch.zeros_like(p) for n, p in net.named_parameters()} for _ in range(2))
        for x, y in zip(data[0].split(GROUP), data[1].split(GROUP), strict=True):
            net.zero_grad()
            loss(net(x)[self.t], y).backward()
            for name, p in net.named_parameters():
                if p.grad is not None:
                    sums[name] += of(p.grad)
                    unused[name] += p.grad
        return sums


def values(net: nn.Module) -> Weights:
    """Copies of all weights."""
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def cpu() -> float:
    """Of this process and of those that it has waited for."""
    times = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in times)


def parts_of(run: RunDirectory, stream: Stream) -> tuple[Counter[str], Counter[str]]:
    """CPU seconds and images of a run of ours by part; what was recalled is in neither.

    Validation is part of the training, and what a guard tries on entry (a batch forward and backward) of the Fisher.
    """
    seconds, images = Counter[str](), Counter[str]()
    for event, task in zip(run.tasks(), stream.tasks, strict=True):
        spent, size = event["cpu_seconds"], task.train.size
        seconds["training"] += spent["train"] + spent.get("expand", 0.0)
        seconds["Fisher"] += spent["fisher"]
        seconds["evaluation"] += spent["evaluate"]
        seconds[run.config.method] += sum(spent.values())
        seconds["later tasks"] += sum(spent.values()) if event["task"] > 1 else 0.0
        trained = {"train": event["epochs"] * size, "theta_e": event["epochs_theta_e"] * size}
        images["training"] += sum(count for phase, count in trained.items() if phase not in event["recalled"])
        images["Fisher"] += event["samples"] - sum(trained.values())
    return seconds, images


def prepared(stream: Stream) -> list[Data]:
    """The tasks of a stream, normalised at once, as the released code has them."""

    def normalised(task: Task, split: Split | None) -> tuple[Tensor, Tensor]:
        assert split is not None
        assert task.prepare is not None
        return task.prepare(split.inputs), split.targets

    return [
        Data(*(normalised(task, split) for split in (task.train, task.validation, task.test))) for task in stream.tasks
    ]


def column(tasks: int, epochs: int, images: int) -> None:
    """All rows of both."""
    stream = make_stream("cifar100-sc", 0, tasks=tasks, images=images)
    data = prepared(stream)
    sets = [
        f"stream.tasks={tasks}",
        f"stream.images={images}",
        f"training.max_epochs={epochs}",
        "training.patience=off",
    ]
    ours, theirs = (Counter[str](), Counter[str]()), (Counter[str](), Counter[str]())
    print(
        f"a column of Table 2: {len(ROWS)} rows, {tasks} tasks of {data[0].size} images, {epochs} epochs; CPU seconds"
    )
    with tempfile.TemporaryDirectory() as folder:
        start = cpu()
        found = study(["cifar100-sc"], ROWS, [0], sets=sets, root=Path(folder), workers=1)
        ours[0]["all"] = cpu() - start
        for outcome in found:
            assert outcome.directory is not None, outcome.error
            for known, of_run in zip(ours, parts_of(outcome.directory, stream), strict=True):
                known.update(of_run)
    Adam(Net(tasks).parameters())  # the first optimiser of a process imports much
    for row in ROWS:
        torch.manual_seed(0)
        released = Released(row, epochs)
        released.learn(data)
        theirs[0].update(released.seconds)
        theirs[1].update(released.images)
        print(f"  {row:12} released {released.seconds['all']:6.1f}, ours {ours[0][row]:6.1f}", flush=True)
    report(ours, theirs)


def report(ours: tuple[Counter[str], Counter[str]], theirs: tuple[Counter[str], Counter[str]]) -> None:
    """The ratio, and where the seconds that are spared come from: fewer images, and less for each of them."""
    seconds, released = ours[0], theirs[0]
    print(
        f"  in all: ours {seconds['all']:.1f}, released {released['all']:.1f}: {released['all'] / seconds['all']:.2f} ×"
    )
    later = released["later tasks"] / seconds["later tasks"]
    print(f"  from the second task on, without start-up: {later:.2f} × (goal: at least 3 ×)")
    known = 0.0
    for part in ("training", "Fisher"):
        each = [of[0][part] / of[1][part] for of in (ours, theirs)]
        fewer, known = (theirs[1][part] - ours[1][part]) * each[1], known + seconds[part]
        faster = ours[1][part] * (each[1] - each[0])
        print(
            f"  {part}: {theirs[1][part] / ours[1][part]:.2f} × fewer images ({fewer:.1f} s), each {each[1] / each[0]:.2f} × "
            f"as fast ({1e3 * each[1]:.2f} and {1e3 * each[0]:.2f} ms; {faster:.1f} s)"
        )
    print("  (the guard's trials on entry count as Fisher: of a small task they are more than the Fisher itself)")
    print(f"  evaluation: {released['evaluation']:.1f} and {seconds['evaluation']:.1f} s, ours without validation")
    print(f"  start-up, files and probes of ours: {seconds['all'] - known - seconds['evaluation']:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--images", type=int, default=128, help="of a task to train on; validation and test shrink alike"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        column(options.tasks, options.epochs, options.images)
    except DataError as error:
        print(f"bench/column.py needs the real CIFAR-100: {error}")
        sys.exit(0)
