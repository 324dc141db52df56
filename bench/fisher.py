"""How fast and how large is a Fisher pass, beside plain training on the same images, in the same run.

    PYTHONPATH=src python bench/fisher.py            # the CIFAR network: times, ratios, growth of the process
    PYTHONPATH=src python bench/fisher.py --chunks   # the same for several chunk sizes
    PYTHONPATH=src python bench/fisher.py --alexnet  # peak memory of an AlexNet Fisher, in a process of its own
    PYTHONPATH=src python bench/fisher.py --formats channels_last   # one memory format in a fresh process

One thread. Times are the best of several rounds, and each round runs everything once, one after the other, so that
a busy machine is unfair to all alike. Plain training is forward and backward at batch 256, without an optimiser.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from afec.fisher import Kind, Problem, estimate
from afec.nets.alexnet import AlexNet
from afec.nets.cnn6 import CNN6

IMAGES, BATCH, CLASSES = 512, 256, 5
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

Batch = tuple[Tensor, Tensor]


def problem_of(backbone: CNN6 | AlexNet, classes: int) -> Problem:
    model = nn.Sequential(backbone, nn.Linear(backbone.out_features, classes))
    return Problem(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), lambda m, b: m(b[0]), likelihood="categorical")


def batches_of(size: int, memory_format: torch.memory_format, images: int = IMAGES) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, 3, size, size, generator=generator).contiguous(memory_format=memory_format)
    y = torch.randint(0, CLASSES, (images,), generator=generator)
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def plain(problem: Problem, batches: list[Batch]) -> None:
    for batch in batches:
        problem.model.zero_grad()
        problem.loss(problem.model, batch).backward()


def fisher(problem: Problem, batches: list[Batch], kind: Kind, chunk: int) -> None:
    result = estimate(problem, dict(problem.model.named_parameters()), batches, kind=kind, chunk=chunk)
    assert kind == "batched" or set(result.routes.values()) == {"fast"}, result.routes


def growth(run: Callable[[], None]) -> float:
    """By how many MB the process grows at most while `run` runs."""
    process, peak, done = psutil.Process(), [0], threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return (peak[0] - before) / 2**20


def time_cnn6(rounds: int, chunks: list[int], formats: list[str]) -> None:
    for name in formats:
        memory_format = FORMATS[name]
        problem = problem_of(CNN6(), CLASSES)
        problem.model.to(memory_format=memory_format)
        batches = batches_of(32, memory_format)
        small = [pair for x, y in batches for pair in zip(x.split(20), y.split(20), strict=True)]
        default = chunks[0]
        runs = {"forward + backward, batch 256": partial(plain, problem, batches)}
        for chunk in chunks:
            runs[f"empirical, chunk {chunk}"] = partial(fisher, problem, batches, "empirical", chunk)
        runs[f"sample, chunk {default}"] = partial(fisher, problem, batches, "sample", default)
        runs[f"exact ({CLASSES} classes), chunk {default}"] = partial(fisher, problem, batches, "exact", default)
        runs["batched (20)"] = partial(fisher, problem, small, "batched", default)
        # Memory first: what an earlier run has freed, the process keeps, and a later one need not ask for.
        grown = growth(runs[f"empirical, chunk {default}"])
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(rounds):
            for label, run in runs.items():
                start = time.perf_counter()
                run()
                best[label] = min(best[label], time.perf_counter() - start)
        base = next(iter(best.values()))
        print(f"cnn6, {IMAGES} images, {name}, {torch.get_num_threads()} thread")
        for label, seconds in best.items():
            print(f"  {label:<32}{seconds:7.3f} s   {seconds / base:5.2f} x")
        print(f"  growth of the process, empirical, chunk {default}: {grown:.0f} MB")


def alexnet_here(kind: Kind, images: int, chunk: int) -> None:
    problem = problem_of(AlexNet(), CLASSES)
    batches = batches_of(224, torch.contiguous_format, images)
    marks = [time.perf_counter()]
    fisher(problem, batches, kind, chunk)
    marks.append(time.perf_counter())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    plain(problem, batches)
    marks.append(time.perf_counter())
    seconds, base = (after - before for before, after in pairwise(marks))
    print(
        f"alexnet, {images} images, {kind}, chunk {chunk}: peak {peak:.2f} GB in all; "
        f"{seconds:.1f} s, {seconds / base:.2f} x forward + backward"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunks", action="store_true", help="try several chunk sizes")
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--alexnet", action="store_true")
    parser.add_argument("--alexnet-here", metavar="KIND", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alexnet_here:
        alexnet_here(options.alexnet_here, images=64, chunk=16)
    elif options.alexnet:
        for kind in ("empirical", "exact"):
            subprocess.run([sys.executable, __file__, "--alexnet-here", kind], check=True)
    else:
        time_cnn6(options.rounds, [16, 4, 8, 32, 64, 128] if options.chunks else [16], options.formats)


if __name__ == "__main__":
    main()
