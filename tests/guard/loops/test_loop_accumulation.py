"""Gradient accumulation and clipping, with and without `task.pull()`."""

import pytest
import torch
from torch import optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from two_tasks import same_as_penalty

CLIP = 0.2


def micro_batches(batches, parts=4):
    for x, y in batches * 3:
        yield list(zip(x.chunk(parts), y.chunk(parts), strict=True))


def accumulate(run, micro, after_each=lambda: None):
    for batch in micro:
        (run.loss(run.model, batch) / len(micro)).backward()
        after_each()


def momentum(model):
    return optim.SGD(model.parameters(), 0.1, momentum=0.5)


@pytest.mark.parametrize("to_none", [True, False])
def test_accumulation_alone_pulls_once(to_none, kind):
    def loop(run):
        for micro in micro_batches(run.batches):
            run.optimizer.zero_grad(set_to_none=to_none)
            accumulate(run, micro)
            run.optimizer.step()

    same_as_penalty(loop, momentum, kind)


def test_clipping_before_the_step_does_not_clip_the_pull(kind):
    """The documented difference: the penalty's gradient is added after clipping."""

    def loop(run):
        for micro in micro_batches(run.batches):
            run.optimizer.zero_grad()
            accumulate(run, micro)
            clip_grad_norm_(run.model.parameters(), CLIP)
            run.optimizer.step()

    def reference(run, penalty):
        for micro in micro_batches(run.batches):
            run.optimizer.zero_grad()
            accumulate(run, micro)
            assert clip_grad_norm_(run.model.parameters(), CLIP) > CLIP
            penalty.add_to_grads(run.model)
            run.optimizer.step()

    same_as_penalty(loop, momentum, kind, reference=reference)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_])
@pytest.mark.parametrize("foreach", [True, False])
def test_pull_before_clipping_clips_both(clip, foreach, to_none, kind):
    def loop(run):
        for micro in micro_batches(run.batches):
            run.optimizer.zero_grad(set_to_none=to_none)
            accumulate(run, micro)
            run.pull()
            clip(run.model.parameters(), CLIP / 10, foreach=foreach)
            run.optimizer.step()

    same_as_penalty(loop, momentum, kind)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("make", [momentum, lambda model: optim.Adam(model.parameters(), 0.02, fused=True)])
def test_pull_after_each_of_four_backwards_counts_once(make, to_none, kind):
    def loop(run):
        for micro in micro_batches(run.batches):
            run.optimizer.zero_grad(set_to_none=to_none)
            accumulate(run, micro, run.pull)
            clip_grad_norm_(run.model.parameters(), CLIP)
            run.optimizer.step()

    same_as_penalty(loop, make, kind)


def test_pull_and_value_clipping_after_each_backward(kind):
    """Clipping what was accumulated so far, each time: the pull is in it once, from the first time on."""

    def loop(run):
        for micro in micro_batches(run.batches):
            run.optimizer.zero_grad()
            accumulate(run, micro, lambda: (run.pull(), clip_grad_norm_(run.model.parameters(), CLIP)))
            run.optimizer.step()

    def reference(run, penalty):
        for micro in micro_batches(run.batches):
            run.optimizer.zero_grad()
            for number, batch in enumerate(micro):
                (run.loss(run.model, batch) / len(micro)).backward()
                if number == 0:
                    penalty.add_to_grads(run.model)
                clip_grad_norm_(run.model.parameters(), CLIP)
            run.optimizer.step()

    same_as_penalty(loop, momentum, kind, reference=reference)


def test_pull_several_times_in_a_row_counts_once(kind):
    def loop(run):
        for batch in run.batches:
            run.optimizer.zero_grad()
            run.loss(run.model, batch).backward()
            for _ in range(3):
                run.pull()
            run.optimizer.step()

    same_as_penalty(loop, momentum, kind)


def test_pull_before_backward_is_the_same_as_after_it(kind):
    """`pull()` without gradients does nothing; onto zeroed ones it adds the pull, which the backward keeps."""

    def loop(run, to_none=True):
        for batch in run.batches:
            run.optimizer.zero_grad(set_to_none=to_none)
            run.pull()
            run.loss(run.model, batch).backward()
            run.optimizer.step()

    same_as_penalty(loop, momentum, kind)
    same_as_penalty(lambda run: loop(run, False), momentum, kind)


def test_pulled_gradients_that_are_thrown_away_take_the_pull_with_them(kind):
    """A bad batch is skipped: zeroed after `pull()`, without a step."""

    def loop(run, to_none=True):
        for batch in run.batches * 2:
            run.optimizer.zero_grad(set_to_none=to_none)
            run.loss(run.model, (100 * batch[0], batch[1])).backward()
            run.pull()
            run.optimizer.zero_grad(set_to_none=to_none)
            run.loss(run.model, batch).backward()
            run.optimizer.step()

    same_as_penalty(loop, momentum, kind)
    same_as_penalty(lambda run: loop(run, False), momentum, kind)


def test_noise_added_to_pulled_gradients(kind):
    def loop(run):
        for batch in run.batches:
            run.optimizer.zero_grad()
            run.loss(run.model, batch).backward()
            run.pull()
            for weight in run.model.parameters():
                weight.grad.mul_(0.5).add_(torch.randn_like(weight), alpha=0.01)
            run.optimizer.step()

    same_as_penalty(loop, momentum, kind)
