"""Plain loops: the usual optimisers, and where people put zero_grad."""

import pytest
import torch
from torch import optim

from two_tasks import apart, learned_one_task, plain_loop, same_as_penalty

OPTIMIZERS = {
    "sgd": lambda model: optim.SGD(model.parameters(), 0.1),
    "momentum": lambda model: optim.SGD(model.parameters(), 0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd-fused": lambda model: optim.SGD(model.parameters(), 0.02, momentum=0.9, fused=True),
    "adam": lambda model: optim.Adam(model.parameters(), 0.01),
    "adamw-foreach": lambda model: optim.AdamW(model.parameters(), 0.01, foreach=True),
    "adamw-fused": lambda model: optim.AdamW(model.parameters(), 0.01, fused=True),
    "adamw-for-loop": lambda model: optim.AdamW(model.parameters(), 0.01, foreach=False, amsgrad=True),
    "rmsprop": lambda model: optim.RMSprop(model.parameters(), 0.01, centered=True),
    "rprop": lambda model: optim.Rprop(model.parameters(), 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimiser(name, kind):
    same_as_penalty(plain_loop, OPTIMIZERS[name], kind)


def test_single_precision(kind):
    same_as_penalty(plain_loop, kind=kind, dtype=torch.float32, tol=2e-6)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("place", ["before-forward", "before-backward", "after-step", "by-the-model"])
def test_zero_grad_anywhere(place, to_none, kind):
    def loop(run):
        for _ in range(3):
            for batch in run.batches:
                if place == "before-forward":
                    run.optimizer.zero_grad(set_to_none=to_none)
                loss = run.loss(run.model, batch)
                if place == "before-backward":
                    run.optimizer.zero_grad(set_to_none=to_none)
                loss.backward()
                run.optimizer.step()
                if place == "after-step":
                    run.optimizer.zero_grad(set_to_none=to_none)
                if place == "by-the-model":
                    run.model.zero_grad(set_to_none=to_none)

    same_as_penalty(loop, kind=kind)


def test_gradients_that_are_never_zeroed_keep_the_old_pulls_as_well(kind):
    def loop(run):
        for batch in run.batches:
            run.loss(run.model, batch).backward()
            run.optimizer.step()

    same_as_penalty(loop, lambda model: optim.SGD(model.parameters(), 0.01), kind)


def test_step_inside_no_grad_and_inside_a_function(kind):
    def loop(run):
        for batch in run.batches:
            run.optimizer.zero_grad()
            run.loss(run.model, batch).backward()
            with torch.no_grad():
                run.optimizer.step()

    same_as_penalty(loop, kind=kind)


def test_scheduler_that_patches_step(kind):
    def loop(run):
        scheduler = optim.lr_scheduler.OneCycleLR(run.optimizer, 0.2, total_steps=10)
        for batch in run.batches * 3:
            run.optimizer.zero_grad()
            run.loss(run.model, batch).backward()
            run.optimizer.step()
            scheduler.step()

    same_as_penalty(loop, lambda model: optim.SGD(model.parameters(), 0.1, momentum=0.5), kind)


def test_weights_that_get_no_gradient_are_left_alone():
    """The documented difference: autograd on loss + penalty would move them."""

    def only_the_head(model, batch):
        with torch.no_grad():
            hidden = model[1](model[0](batch[0]))
        return torch.nn.functional.cross_entropy(model[2](hidden), batch[1])

    def reference(run, penalty):
        for batch in run.batches:
            run.optimizer.zero_grad()
            run.loss(run.model, batch).backward()
            penalty.add_to_grads(run.model)
            run.optimizer.step()

    def loop(run):
        plain_loop(run, epochs=1)

    model, _ = same_as_penalty(loop, loss=only_the_head, reference=reference)
    before, _ = learned_one_task("ewc")
    assert model[0].weight.grad is None
    assert apart(model, before) > 0


def test_tensor_hooks_on_weights_see_the_gradient_of_the_loss(kind):
    def loop(run):
        handle = run.model[0].weight.register_hook(lambda grad: 0.5 * grad)
        plain_loop(run)
        handle.remove()

    def reference(run, penalty):
        for batch in run.batches * 3:
            run.optimizer.zero_grad()
            run.loss(run.model, batch).backward()
            run.model[0].weight.grad *= 0.5
            penalty.add_to_grads(run.model)
            run.optimizer.step()

    same_as_penalty(loop, kind=kind, reference=reference)
