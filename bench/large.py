"""What large images cost: `python bench/large.py` has the loader beside AlexNet's training step, image by image in CPU time.

`--memory`: the peak of a whole process that learns two tasks of 224 pixels with EWC + AFEC and AlexNet's 57 million weights.
`--cost`: EWC + AFEC beside fine-tuning over ten tasks at the net of the scale `short`, by samples and in CPU time.
Images are made up; nothing need be downloaded.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from afec import AFEC, EWC
from afec.data.cache import ImageCache, open_images
from afec.guard import Guard
from afec.lab.process_memory import peak_memory_mb, reset_peak_memory
from afec.learner import Learner, Machine, Schedule
from afec.nets import MultiHead, make_backbone
from afec.streams import Task
from afec.streams.images import Normalise
from afec.streams.photographs import Photographs, stored_short

BATCH, CLASSES = 64, 4


def cache(folder: Path, count: int, size: int) -> ImageCache:
    """Photographs of a larger size than what is kept of them, as the real ones are."""
    draws = np.random.default_rng(0)
    files = []
    for number in range(count):
        pixels = draws.integers(0, 256, (18, 24, 3), dtype=np.uint8)
        files.append(folder / f"{number:04d}.jpg")
        Image.fromarray(pixels).resize((size * 2, size * 3 // 2)).save(files[-1])
    return open_images("bench", files, folder, stored_short(size), folder)


def tasks(images: ImageCache, size: int, count: int, train: int) -> list[Task]:
    """Tasks of four classes, each with so many images to train on and eight to test on."""
    each = train + 8
    place = torch.arange(count * each)
    labels = (place // each) * CLASSES + place % CLASSES
    make = Photographs(images, labels, place % each < train, size, Normalise((0.5,) * 3, (0.25,) * 3), 0, None)
    return [make(f"task {k + 1}", range(k * CLASSES, (k + 1) * CLASSES)) for k in range(count)]


def timed(work: Callable[[], object], rounds: int = 3) -> float:
    """The shortest of several rounds, in CPU seconds."""
    work()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def loader(folder: Path, size: int, options: dict[str, int]) -> None:
    task = tasks(cache(folder, 2 * (BATCH + 8), size), size, 1, BATCH)[0]
    machine = Machine(channels_last=True)
    net = machine.placed(MultiHead(make_backbone("alexnet", **options), [CLASSES])).train()
    optimizer = torch.optim.SGD(net.parameters(), 0.005, momentum=0.9, fused=True)
    rows, targets = task.train
    assert task.augment is not None
    assert task.prepare is not None
    batch = machine.batch(task.prepare(task.augment(rows)))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(batch, task=0), targets).backward()
        optimizer.step()

    load = timed(lambda: machine.batch(task.prepare(task.augment(rows))), 5)  # type: ignore[misc]
    learn = timed(step, 2)
    print(
        f"{size} pixels, alexnet {options or ''}: the loader {BATCH / load:.0f} images a second, the net {BATCH / learn:.1f}; "
        f"loading is {100 * load / (load + learn):.1f} % of an epoch (goal: at most half)"
    )


def memory(folder: Path, size: int) -> None:
    images = cache(folder, 2 * (BATCH + 8), size)
    reset_peak_memory()
    schedule = Schedule(BATCH, 0.005, "sgd", max_epochs=1, patience=None, best_weights=False)
    fisher = {"fisher": "batched", "fisher_dropout": True}
    guard: Guard = EWC(204.8, preset="official") + AFEC(2.048, **fisher)
    net = MultiHead(make_backbone("alexnet"), [CLASSES, CLASSES])
    learner = Learner(net, guard, schedule=schedule, machine=Machine(channels_last=True), progress=False)
    for task in tasks(images, size, 2, BATCH):
        learner.learn(task)
        print(f"after {task.name}: peak {peak_memory_mb() / 1024:.2f} GB", flush=True)
    learner.evaluate(tasks(images, size, 2, BATCH))
    learner.save(folder / "state.safetensors")
    print(f"EWC + AFEC on the whole AlexNet, {size} pixels: peak {peak_memory_mb() / 1024:.2f} GB (goal: below 4 GB)")


def cost(folder: Path, count: int, train: int, epochs: int) -> None:
    size = 64
    images = cache(folder, count * (train + 8), size)
    schedule = Schedule(16, 0.005, "sgd", max_epochs=epochs, patience=None, best_weights=False)
    fisher = {"fisher": "batched", "fisher_dropout": True}
    found = {}
    for name, guard in {
        "finetune": None,
        "ewc+afec": EWC(204.8, preset="official") + AFEC(2.048, **fisher),
    }.items():
        net = MultiHead(make_backbone("alexnet", hidden=512, pool=1), [CLASSES] * count)
        learner = Learner(net, guard, schedule=schedule, machine=Machine(channels_last=True), progress=False)
        start = time.process_time()
        samples = sum(learner.learn(task).samples for task in tasks(images, size, count, train))
        found[name] = samples, time.process_time() - start
    (few, short), (many, long) = found.values()
    print(
        f"EWC + AFEC over {count} tasks of {epochs} epochs: {many / few:.2f} × fine-tuning by samples, "
        f"{long / short:.2f} × in CPU time (goal: at most 2.2)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true", help="the peak of EWC + AFEC")
    parser.add_argument("--cost", action="store_true", help="EWC + AFEC beside fine-tuning")
    parser.add_argument("--size", type=int, default=224, help="pixels of --memory")
    parser.add_argument("--epochs", type=int, default=15, help="of --cost")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", "the expansion learned nothing")  # there is nothing in these images
    with tempfile.TemporaryDirectory() as place:
        if options.memory:
            memory(Path(place), options.size)
        elif options.cost:
            cost(Path(place), count=4, train=32, epochs=options.epochs)
        else:
            loader(Path(place), 64, {"hidden": 512, "pool": 1})
            (Path(place) / "large").mkdir()
            loader(Path(place) / "large", 224, {})
