"""GradScaler: fused optimisers take the scale off inside their step, the others before it."""

import pytest
import torch
from torch import optim
from torch.nn.utils import clip_grad_norm_

from two_tasks import same_as_penalty

OPTIMIZERS = {
    "sgd": lambda model: optim.SGD(model.parameters(), 0.05, momentum=0.9),
    "adam": lambda model: optim.Adam(model.parameters(), 0.02),
    "sgd-fused": lambda model: optim.SGD(model.parameters(), 0.05, momentum=0.9, fused=True),
    "adam-fused": lambda model: optim.Adam(model.parameters(), 0.02, fused=True),
}


@pytest.fixture(params=OPTIMIZERS)
def make(request):
    return OPTIMIZERS[request.param]


def scaler(run):
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)


def scaled_loop(run, poison=(), clip=None, micro=1):
    """`poison`: the numbers of the steps that get an infinite gradient and must be skipped."""
    amp, applied = scaler(run), 0
    for number, (x, y) in enumerate(run.batches * 4):
        run.optimizer.zero_grad()
        for part in zip(x.chunk(micro), y.chunk(micro), strict=True):
            loss = run.loss(run.model, part) / micro
            amp.scale(loss * (float("inf") if number in poison else 1.0)).backward()
        if clip is not None:
            amp.unscale_(run.optimizer)
            run.pull()
            clip_grad_norm_(run.model.parameters(), clip)
        before = amp.get_scale()
        amp.step(run.optimizer)
        amp.update()
        applied += amp.get_scale() >= before
    assert applied == 4 * len(run.batches) - len(poison)


def test_scaled_loss(make, kind):
    same_as_penalty(scaled_loop, make, kind)


def test_skipped_steps(make, kind):
    same_as_penalty(lambda run: scaled_loop(run, poison=(1, 4, 5)), make, kind)


def test_unscale_pull_and_clip(make, kind):
    same_as_penalty(lambda run: scaled_loop(run, clip=0.1), make, kind)


def test_unscale_pull_and_clip_with_skipped_steps_and_accumulation(make, kind):
    same_as_penalty(lambda run: scaled_loop(run, poison=(1, 2), clip=0.1, micro=4), make, kind)


def test_a_skipped_step_whose_gradients_are_not_zeroed_but_replaced(make, kind):
    """set_to_none=False keeps the tensors: the pull of the skipped step must not count for the next one."""

    def loop(run):
        amp = scaler(run)
        for number, batch in enumerate(run.batches * 2):
            run.optimizer.zero_grad(set_to_none=False)
            amp.scale(run.loss(run.model, batch) * (float("inf") if number == 2 else 1.0)).backward()
            amp.step(run.optimizer)
            amp.update()

    same_as_penalty(loop, make, kind)


def test_disabled_scaler(make, kind):
    def loop(run):
        amp = torch.amp.GradScaler("cpu", enabled=False)
        for batch in run.batches * 2:
            run.optimizer.zero_grad()
            amp.scale(run.loss(run.model, batch)).backward()
            amp.step(run.optimizer)
            amp.update()

    same_as_penalty(loop, make, kind)


def test_autocast_to_bfloat16(kind):
    """Weights and gradients stay in single precision, the forward pass does not."""

    def loop(run):
        amp = scaler(run)
        for batch in run.batches * 2:
            run.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = run.loss(run.model, batch)
            amp.scale(loss).backward()
            amp.step(run.optimizer)
            amp.update()

    def reference(run, penalty):
        for batch in run.batches * 2:
            run.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = run.loss(run.model, batch)
            (loss * 2.0**10).backward()
            for weight in run.model.parameters():
                weight.grad /= 2.0**10
            penalty.add_to_grads(run.model)
            run.optimizer.step()

    same_as_penalty(loop, kind=kind, reference=reference, dtype=torch.float32, tol=1e-5)
