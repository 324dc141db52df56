"""EWC never silently becomes fine-tuning: weights that moved without a step, and what is left after a block."""

import copy

import pytest
import torch
from torch import nn, optim
from torch.optim import optimizer as optimizer_module

import afec
from two_tasks import Run, data, equal, learned_one_task, loader, plain_loop, plain_loss, same_as_penalty, sgd


def entered(kind="ewc", **options):
    model, guard = learned_one_task(kind, **options)
    return model, guard, sgd(model), data(2)


def step(model, optimizer, batch):
    optimizer.zero_grad()
    plain_loss(model, batch).backward()
    optimizer.step()


def test_a_weight_moved_by_hand_raises_at_the_next_backward(kind):
    model, guard, optimizer, second = entered(kind)
    with (
        pytest.raises(afec.WeightMovedError, match=r"0\.weight.*task\.accept\(\)"),
        guard.learning(model, optimizer, second, nn.CrossEntropyLoss()),
    ):
        step(model, optimizer, second)
        with torch.no_grad():
            model[0].weight.clamp_(-0.1, 0.1)
        optimizer.zero_grad()
        plain_loss(model, second).backward()
        pytest.fail("the backward went through")


def test_a_weight_moved_by_hand_raises_at_the_end_at_the_latest():
    model, guard, optimizer, second = entered()
    before = guard.state_dict()["states"]["ewc"]["mean"]
    with (
        pytest.raises(afec.WeightMovedError, match=r"2\.bias"),
        guard.learning(model, optimizer, second, nn.CrossEntropyLoss()),
    ):
        step(model, optimizer, second)
        with torch.no_grad():
            model[2].bias.add_(1.0)
    assert guard.tasks_done == 1
    assert guard.state_dict()["states"]["ewc"]["mean"] is before


def test_a_loop_without_an_optimiser_raises():
    model, guard, optimizer, second = entered()
    with (
        pytest.raises(afec.WeightMovedError),
        guard.learning(model, None, second, nn.CrossEntropyLoss()),
    ):
        plain_loss(model, second).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(weight.grad, alpha=0.1)


def test_a_loop_through_data_raises_at_the_end_when_no_step_was_seen():
    """Writes through `.data` leave no version; without any step of an optimiser they are noticed at the end."""
    model, guard, optimizer, second = entered()
    with (
        pytest.raises(afec.WeightMovedError),
        guard.learning(model, None, second, nn.CrossEntropyLoss()),
    ):
        plain_loss(model, second).backward()
        for weight in model.parameters():
            weight.data.sub_(0.1 * weight.grad)


class NeverInitialised(optim.Optimizer):
    """No super().__init__(): its step has no hooks, so the guard cannot see it."""

    def __init__(self, params, lr):
        self.param_groups, self.state, self.lr = [{"params": list(params), "lr": lr}], {}, lr

    def zero_grad(self, set_to_none=True):
        for weight in self.param_groups[0]["params"]:
            weight.grad = None

    @torch.no_grad()
    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            weight.sub_(weight.grad, alpha=self.lr)


def test_an_optimiser_without_hooks_raises():
    model, guard, _, second = entered()
    optimizer = NeverInitialised(model.parameters(), 0.1)
    with (
        pytest.raises(afec.WeightMovedError, match=r"super\(\).__init__\(\)"),
        guard.learning(model, optimizer, second, nn.CrossEntropyLoss()),
    ):
        step(model, optimizer, second)
        step(model, optimizer, second)


def test_weight_clipping_with_accept(kind):
    def loop(run):
        for batch in run.batches * 2:
            run.optimizer.zero_grad()
            run.loss(run.model, batch).backward()
            run.optimizer.step()
            with torch.no_grad():
                for weight in run.model.parameters():
                    weight.clamp_(-0.4, 0.4)
            if run.task is not None:
                run.task.accept()

    same_as_penalty(loop, kind=kind)


def test_weight_clipping_in_a_post_hook_of_the_optimiser_needs_no_accept(kind):
    def make(model):
        optimizer = sgd(model)

        def clip(*_):
            with torch.no_grad():
                for weight in model.parameters():
                    weight.clamp_(-0.4, 0.4)

        optimizer.register_step_post_hook(clip)
        return optimizer

    same_as_penalty(plain_loop, make, kind)


def test_moving_average_of_the_weights_is_not_disturbed(kind):
    averages = []

    def loop(run):
        average = optim.swa_utils.AveragedModel(run.model)
        for batch in run.batches * 2:
            step(run.model, run.optimizer, batch) if run.task else None
            if run.task is None:
                run.optimizer.zero_grad()
                run.loss(run.model, batch).backward()
                run.optimizer.step()
            average.update_parameters(run.model)
        averages.append(copy.deepcopy(average.module))

    same_as_penalty(loop, kind=kind)
    guarded, reference, free = averages
    for one, other in zip(guarded.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_restoring_the_best_weights_inside_the_block(kind):
    def loop(run):
        plain_loop(run, epochs=1)
        best = copy.deepcopy(run.model.state_dict())
        plain_loop(run, epochs=1)
        run.model.load_state_dict(best)
        plain_loop(run, epochs=1)
        run.model.load_state_dict(best)

    model, _ = same_as_penalty(loop, kind=kind)


def test_restoring_a_submodule_excuses_that_submodule_only():
    model, guard, optimizer, second = entered()
    best = copy.deepcopy(model[0].state_dict())
    with (
        pytest.raises(afec.WeightMovedError, match=r"2\.weight"),
        guard.learning(model, optimizer, second, nn.CrossEntropyLoss()),
    ):
        step(model, optimizer, second)
        with torch.no_grad():
            model[2].weight.mul_(2)
        model[0].load_state_dict(best)
        plain_loss(model, second).backward()


def test_weights_replaced_by_other_tensors_raise():
    model, guard, optimizer, second = entered()
    best = {name: value.clone() for name, value in model.state_dict().items()}
    with (
        pytest.raises(afec.WeightMovedError, match="assign=True"),
        guard.learning(model, optimizer, second, nn.CrossEntropyLoss()),
    ):
        model.load_state_dict(best, assign=True)


# -- what is left ---------------------------------------------------------------------------------------------------


def hooks(model):
    """Everything that a block could leave behind."""
    return (
        len(optimizer_module._global_optimizer_pre_hooks),
        len(optimizer_module._global_optimizer_post_hooks),
        [len(weight._post_accumulate_grad_hooks or ()) for weight in model.parameters()],
        [len(weight._backward_hooks or ()) for weight in model.parameters()],
        [
            [
                len(found)
                for found in (m._load_state_dict_post_hooks, m._forward_hooks, m._forward_pre_hooks, m._backward_hooks)
            ]
            for m in model.modules()
        ],
    )


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_no_hook_and_the_guard_as_on_entry(error, kind):
    model, guard, optimizer, second = entered(kind)
    before, state = hooks(model), guard.state_dict()
    with pytest.raises(error), guard.learning(model, optimizer, second, nn.CrossEntropyLoss()):
        assert hooks(model) != before
        step(model, optimizer, second)
        raise error
    assert hooks(model) == before
    assert not guard.in_task
    assert guard.task is None
    after = guard.state_dict()
    assert after.keys() == state.keys()
    assert all(after["states"][name] is state["states"][name] for name in state["states"])
    assert after["task_states"] is None
    # And the optimiser's next step is a plain one.
    twin = copy.deepcopy(model)
    step(model, optimizer, second)
    step(twin, sgd(twin), second)
    assert equal(model, twin)


def test_a_failed_expansion_leaves_no_hook():
    model, guard = learned_one_task("ewc+afec", expand=lambda: 1 / 0, epochs=None, optimizer=None)
    before, weights = hooks(model), copy.deepcopy(model)
    with pytest.raises(ZeroDivisionError), guard.learning(model, sgd(model), data(2), nn.CrossEntropyLoss()):
        pytest.fail("the block was entered")
    assert hooks(model) == before
    assert equal(model, weights)
    assert not guard.in_task


def test_the_end_leaves_no_hook(kind):
    model, guard, optimizer, second = entered(kind)
    before = hooks(model)
    with guard.learning(model, optimizer, second, nn.CrossEntropyLoss()):
        step(model, optimizer, second)
    assert hooks(model) == before


def test_begin_and_end_by_hand_are_the_block(kind):
    results = []
    for by_hand in (False, True):
        torch.manual_seed(0)
        model, guard, optimizer, second = entered(kind)
        if by_hand:
            task = guard.begin(model, optimizer, second, nn.CrossEntropyLoss())
            assert guard.task is task
            step(model, optimizer, second)
            task.end()
            with pytest.raises(RuntimeError, match="ended already"):
                task.end()
        else:
            with guard.learning(model, optimizer, second, nn.CrossEntropyLoss()):
                step(model, optimizer, second)
        assert guard.tasks_done == 2
        results.append(guard.state_dict()["states"]["ewc"])
    for part in ("mean", "precision"):
        assert all(torch.equal(results[0][part][name], results[1][part][name]) for name in results[0][part])


def test_abort_inside_the_block_drops_the_task():
    model, guard, optimizer, second = entered()
    before = hooks(model)
    with guard.learning(model, optimizer, second, nn.CrossEntropyLoss()) as task:
        step(model, optimizer, second)
        task.abort()
        assert hooks(model) == before
    assert guard.tasks_done == 1


# -- several blocks at once -----------------------------------------------------------------------------------------


def test_nested_blocks_raise():
    model, guard, optimizer, second = entered()
    with guard.learning(model, optimizer, second, nn.CrossEntropyLoss()) as task:
        with pytest.raises(RuntimeError, match="do not nest"):
            guard.begin(model, optimizer, second, nn.CrossEntropyLoss())
        assert guard.task is task
        other = afec.EWC(1.0)
        with pytest.raises(RuntimeError, match="one \\+ other"):
            other.begin(model, optimizer, second, nn.CrossEntropyLoss())
        assert not other.in_task
        step(model, optimizer, second)  # the outer block goes on
    assert guard.tasks_done == 2


def test_two_guards_on_two_parts_of_one_model():
    """Each pulls its own part; the reference has both penalties."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    body, head = afec.EWC(30.0, params=model[0]), afec.EWC(50.0, params=model[2])
    for tensors in (data(1), data(2)):
        optimizer = sgd(model)
        twin, batches = copy.deepcopy(model), list(loader(tensors))
        with (
            body.learning(model, optimizer, tensors, nn.CrossEntropyLoss()),
            head.learning(model, optimizer, tensors, nn.CrossEntropyLoss()),
        ):
            states = [(30.0, body.state_dict()["states"]), (50.0, head.state_dict()["states"])]
            plain_loop(Run(model, optimizer, plain_loss, batches=batches))
    terms = [(weight, state["ewc"]) for weight, state in states]
    assert {name for _, state in terms for name in state["mean"]} == dict(model.named_parameters()).keys()

    def loss(model, batch):
        total = plain_loss(model, batch)
        for name, value in model.named_parameters():
            for weight, state in terms:
                if name in state["mean"]:
                    total = total + weight / 2 * (state["precision"][name] * (value - state["mean"][name]) ** 2).sum()
        return total

    plain_loop(Run(twin, sgd(twin), loss, batches=batches))
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_another_model_in_the_block_is_not_touched(kind):
    """A discriminator, a target network: its optimiser steps without any pull, bit for bit."""
    model, guard, optimizer, second = entered(kind)
    bystander = copy.deepcopy(model)
    twin = copy.deepcopy(model)
    with guard.learning(model, optimizer, second, nn.CrossEntropyLoss()):
        step(model, optimizer, second)
        step(bystander, sgd(bystander), second)
    step(twin, sgd(twin), second)
    assert equal(bystander, twin)
