"""What else real loops do: steps inside backward, saving and copying the model, checkpointing, compiled steps."""

import copy
import io

import pytest
import torch
from torch import nn, optim
from torch.utils.checkpoint import checkpoint

import afec
from two_tasks import (
    Penalty,
    Run,
    apart,
    build,
    data,
    equal,
    exact_fisher,
    learned_one_task,
    loader,
    net,
    plain_loop,
    plain_loss,
    same_as_penalty,
    sgd,
)


@pytest.mark.parametrize("hooked", ["before-the-block", "inside-the-block"])
def test_optimiser_steps_inside_the_backward(hooked, kind):
    """One optimiser for each weight, stepped as soon as its gradient is there, to save memory."""

    def hook(model):
        optimizers = {weight: optim.SGD([weight], 0.1, momentum=0.5) for weight in model.parameters()}

        def step(weight):
            optimizers[weight].step()
            weight.grad = None

        handles = [weight.register_post_accumulate_grad_hook(step) for weight in model.parameters()]
        return handles, list(optimizers.values())

    def train(model, loss=plain_loss):
        for batch in list(loader(data(2))) * 3:
            loss(model, batch).backward()

    model, guard = learned_one_task(kind)
    twin, free = copy.deepcopy(model), copy.deepcopy(model)
    handles, optimizers = hook(model) if hooked == "before-the-block" else ([], None)
    with guard.learning(model, optimizers, data(2), nn.CrossEntropyLoss()):
        penalty = Penalty(guard)
        handles = handles or hook(model)[0]
        train(model)
    for handle in handles:
        handle.remove()
    hook(twin)
    train(twin, lambda model, batch: plain_loss(model, batch) + penalty(model))
    hook(free)
    train(free)
    assert apart(twin, free) > 1e-4
    assert apart(model, twin) < 1e-9


def test_the_model_can_be_pickled_and_copied_inside_the_block(kind):
    """Saving the best model as a whole, evaluating in another process, keeping a copy."""

    def loop(run):
        plain_loop(run, epochs=1)
        run.pull()  # leaves hooks on the weights
        run.optimizer.zero_grad()
        torch.save(run.model, file := io.BytesIO())
        best = copy.deepcopy(run.model)
        plain_loop(run, epochs=1)
        best.load_state_dict(run.model.state_dict())
        file.seek(0)
        run.model.load_state_dict(torch.load(file, weights_only=False).state_dict())
        assert not equal(best, run.model)
        plain_loop(run, epochs=1)

    same_as_penalty(loop, kind=kind)


def test_a_copy_of_the_model_is_not_guarded():
    """Loading weights into a copy must not excuse the original, and the copy trains without any pull."""
    model, guard = learned_one_task("ewc")
    optimizer, second = sgd(model), data(2)
    twin = copy.deepcopy(model)
    with (
        pytest.raises(afec.WeightMovedError),
        guard.learning(model, optimizer, second, nn.CrossEntropyLoss()),
    ):
        copied = copy.deepcopy(model)
        for one in (copied, twin):
            plain_loop(Run(one, sgd(one), plain_loss, batches=[second]), epochs=2)
        assert equal(copied, twin)
        with torch.no_grad():
            model[0].weight.mul_(2)
        copied.load_state_dict(twin.state_dict())
        plain_loss(model, second).backward()


@pytest.mark.filterwarnings(
    "ignore:None of the inputs have requires_grad"
)  # reentrant, in train mode without gradients
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant, kind):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = nn.Linear(4, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 3))

        def forward(self, x):
            if not self.training:  # as transformers do
                return self.rest(self.first(x))
            return checkpoint(self.rest, self.first(x), use_reentrant=reentrant)

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    torch.manual_seed(0)
    model = Checkpointed().double()
    guard = afec.EWC(30.0, fisher="empirical")
    if kind != "ewc":
        how = {"epochs": 4, "optimizer": lambda params: optim.SGD(params, 0.5)}
        guard = guard + afec.AFEC(4.0, fisher="empirical", **how)
    for number in (1, 2):
        model.zero_grad()
        twin, source = copy.deepcopy(model), list(loader(data(number)))
        with guard.learning(model, sgd(model), source, loss):
            penalty = Penalty(guard)
            plain_loop(Run(model, sgd(model), loss, batches=source))
    plain_loop(Run(twin, sgd(twin), lambda m, b: loss(m, b) + penalty(m), batches=source))
    assert apart(model, twin) < 1e-9


def test_a_model_that_becomes_double_inside_the_block(kind):
    """The pull follows the weights' type."""
    model, guard = learned_one_task(kind, dtype=torch.float32)
    twin = copy.deepcopy(model)
    single, double = list(loader(data(2, dtype=torch.float32))), list(loader(data(2)))

    def loop(run):
        plain_loop(Run(run.model, run.optimizer, run.loss, batches=single), epochs=1)
        run.model.double()
        run.model.zero_grad()
        plain_loop(Run(run.model, sgd(run.model), run.loss, batches=double), epochs=1)

    task = guard.begin(model, sgd(model), data(2, dtype=torch.float32), nn.CrossEntropyLoss())
    penalty = Penalty(guard)
    loop(Run(model, sgd(model), plain_loss))
    task.abort()  # the data are still single
    loop(Run(twin, sgd(twin), lambda m, b: plain_loss(m, b) + penalty(m)))
    assert model[0].weight.dtype == torch.float64
    assert apart(model, twin) < 1e-6


def test_an_optimiser_that_maximises_is_refused():
    """It climbs −loss, so the pull would push the weights away from where they should stay."""
    model, guard = learned_one_task("ewc")
    second, before = data(2), copy.deepcopy(model)
    optimizer = optim.SGD(model.parameters(), 0.1, maximize=True)
    with (
        pytest.raises(ValueError, match="maximize"),
        guard.learning(model, optimizer, second, nn.CrossEntropyLoss()),
    ):
        plain_loop(Run(model, optimizer, lambda model, batch: -plain_loss(model, batch), batches=[second]))
    assert equal(model, before)


@pytest.mark.filterwarnings("ignore:.*Dynamo", "ignore:.torch.jit:DeprecationWarning")
def test_a_compiled_step_is_pulled_or_refused():
    """Never fine-tuning: either the hooks run, or the weights moved without them and that raises."""
    model, guard = learned_one_task("ewc")
    second, twin = data(2), copy.deepcopy(model)
    optimizer = sgd(model)
    step = torch.compile(optimizer.step, backend="eager")
    try:
        with guard.learning(model, optimizer, second, nn.CrossEntropyLoss()):
            penalty = Penalty(guard)
            for _ in range(3):
                optimizer.zero_grad()
                plain_loss(model, second).backward()
                step()
    except afec.WeightMovedError:
        return
    plain_loop(Run(twin, sgd(twin), lambda m, b: plain_loss(m, b) + penalty(m), batches=[second]))
    assert apart(model, twin) < 1e-9


def test_three_tasks_and_evaluations_in_between(kind):
    """The third task is pulled to the second one's weights, by the mean of both Fishers."""
    model, guard, fishers = net(), build(kind), []
    for number in (1, 2, 3):
        model.zero_grad()
        twin, batches = copy.deepcopy(model), list(loader(data(number)))
        with guard.learning(model, sgd(model), data(number), nn.CrossEntropyLoss()):
            penalty = Penalty(guard) if number > 1 else None
            for _ in range(3):
                plain_loop(Run(model, sgd(model), plain_loss, batches=batches), epochs=1)
                model.eval()
                with torch.no_grad():
                    plain_loss(model, data(1))
                model.train()
        if penalty is not None:
            assert torch.equal(penalty.terms[0][1]["0.weight"], twin[0].weight)
            for name, f in penalty.terms[0][2].items():
                torch.testing.assert_close(f, sum(old[name] for old in fishers) / len(fishers), rtol=1e-7, atol=1e-10)
            plain_loop(Run(twin, sgd(twin), lambda m, b, p=penalty: plain_loss(m, b) + p(m), batches=batches))
            assert apart(model, twin) < 1e-9
        fishers.append(exact_fisher(model, data(number)[0]))
    assert guard.tasks_done == 3
