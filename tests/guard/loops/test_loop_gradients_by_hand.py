"""Loops that write `.grad` themselves: EWC must not become fine-tuning, and no pull may count twice."""

import pytest
import torch
from torch import nn, optim

import afec
from two_tasks import data, learned_one_task, plain_loss, same_as_penalty, sgd


def gradients(run, batch):
    return torch.autograd.grad(run.loss(run.model, batch), list(run.model.parameters()))


@pytest.mark.parametrize("how", ["new", "copy", "zero-and-add", "clone-of-backward"])
@pytest.mark.parametrize("fused", [False, True])
def test_gradients_written_by_hand(how, fused, kind):
    def loop(run):
        for batch in run.batches * 3:
            if how == "clone-of-backward":  # as in gradient surgery: backward, take, combine, write back
                run.model.zero_grad()
                run.loss(run.model, batch).backward()
                found = [weight.grad.clone() for weight in run.model.parameters()]
            else:
                found = gradients(run, batch)
            for weight, grad in zip(run.model.parameters(), found, strict=True):
                if how in ("new", "clone-of-backward") or weight.grad is None:
                    weight.grad = grad
                elif how == "copy":
                    weight.grad.copy_(grad)
                else:
                    weight.grad.zero_()
                    weight.grad.add_(grad)
            run.optimizer.step()

    same_as_penalty(loop, lambda model: optim.Adam(model.parameters(), 0.02, fused=fused), kind)


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_in_one_flat_buffer_that_is_zeroed_and_filled_again(fused, kind):
    """`.grad` are views of one buffer, as with apex and DDP's buckets: the tensors never change."""

    def loop(run):
        weights = list(run.model.parameters())
        flat = torch.zeros(sum(weight.numel() for weight in weights), dtype=torch.float64)
        views = flat.split([weight.numel() for weight in weights])
        for weight, view in zip(weights, views, strict=True):
            weight.grad = view.view_as(weight)
        for batch in run.batches * 3:
            flat.zero_()
            run.loss(run.model, batch).backward()
            run.optimizer.step()

    same_as_penalty(loop, lambda model: optim.SGD(model.parameters(), 0.1, fused=fused), kind)


def test_gradients_scaled_in_place_before_the_step(kind):
    """An edit before the step changes the loss's gradient only, as clipping does."""

    def loop(run):
        for batch in run.batches * 2:
            run.optimizer.zero_grad()
            run.loss(run.model, batch).backward()
            for weight in run.model.parameters():
                weight.grad *= 0.5
            run.optimizer.step()

    def reference(run, penalty):
        for batch in run.batches * 2:
            run.optimizer.zero_grad()
            (0.5 * run.loss(run.model, batch) + penalty(run.model)).backward()
            run.optimizer.step()

    same_as_penalty(loop, kind=kind, reference=reference)


def test_gradients_written_through_data_raise():
    """`.grad.data` leaves no version behind, so the second step cannot know that the gradient is new."""
    model, guard = learned_one_task("ewc")
    batch, optimizer, steps = data(2), sgd(model), 0
    with (
        pytest.raises(afec.GradientUsedTwiceError, match=r"written through `\.data`"),
        guard.learning(model, optimizer, batch, nn.CrossEntropyLoss()),
    ):
        model.zero_grad()
        for _ in range(2):
            grads = torch.autograd.grad(plain_loss(model, batch), list(model.parameters()))
            for weight, grad in zip(model.parameters(), grads, strict=True):
                if weight.grad is None:
                    weight.grad = torch.empty_like(weight)
                weight.grad.data.copy_(grad)
            optimizer.step()
            steps += 1
    assert steps == 1


@pytest.mark.filterwarnings("ignore:Using backward.* with create_graph=True")
def test_backward_with_a_graph(kind):
    """create_graph=True replaces `.grad` instead of adding in place."""

    def loop(run):
        for batch in run.batches * 2:
            run.optimizer.zero_grad()
            run.loss(run.model, batch).backward(create_graph=True)
            run.optimizer.step()
            for weight in run.model.parameters():
                weight.grad = None

    same_as_penalty(loop, kind=kind)


def test_two_losses_with_a_backward_each(kind):
    def loop(run):
        for one, other in zip(run.batches, reversed(run.batches), strict=True):
            run.optimizer.zero_grad()
            (run.loss(run.model, one) / 2).backward()
            (run.loss(run.model, other) / 2).backward()
            run.optimizer.step()

    same_as_penalty(loop, kind=kind)
