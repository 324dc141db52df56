"""Weights of zero: β = 0 is EWC and λ = 0 is fine-tuning, bit for bit."""

import pytest
import torch
from torch import nn, optim

import afec
from two_tasks import Run, data, equal, loader, net, plain_loop, plain_loss


def explode():
    raise AssertionError("a term of weight zero was expanded")


def three_tasks(guard, dtype=torch.float32):
    torch.manual_seed(0)
    model = net(dtype)
    model.insert(1, nn.Dropout(0.2))
    optimizer = optim.Adam(model.parameters(), 0.02)
    for number in (1, 2, 3):
        source = loader(data(number, dtype=dtype), shuffle=True)
        run = Run(model, optimizer, plain_loss, batches=source)
        if guard is None:
            plain_loop(run)
        else:
            with guard.learning(model, optimizer, source, nn.CrossEntropyLoss()):
                plain_loop(run)
    return model


NOTHING = {
    "beta": {"beta": 0.0, "expand": explode},
    "forgetting": {"forgetting": 0.0, "expand": explode},
    "list": {"forgetting": [1.0, 0.0, 0.0], "expand": explode},
    "no-way-to-expand": {"forgetting": 0},
}


@pytest.mark.parametrize("name", NOTHING)
def test_no_forgetting_is_ewc(name):
    plain = afec.EWC(30.0)
    expected = three_tasks(plain)
    guard = afec.EWC(30.0) + afec.AFEC(**NOTHING[name])
    assert equal(three_tasks(guard), expected)
    assert not equal(expected, three_tasks(None))
    found, wanted = guard.state_dict()["states"]["ewc"], plain.state_dict()["states"]["ewc"]
    for part in ("mean", "precision"):
        assert all(torch.equal(found[part][weight], wanted[part][weight]) for weight in wanted[part])


@pytest.mark.parametrize("guard", [afec.EWC(0), afec.EWC(0.0) + afec.AFEC(0.0), afec.AFEC(beta=0)])
def test_no_strength_is_fine_tuning(guard):
    assert equal(three_tasks(guard), three_tasks(None))
    assert guard.tasks_done == 3


def test_the_first_task_is_fine_tuning():
    """Nothing is old yet, so nothing pulls."""
    results = []
    for guard in (None, afec.EWC(1e4) + afec.AFEC(1e4, epochs=1)):
        torch.manual_seed(0)
        model, source = net(), loader(data(1), shuffle=True)
        run = Run(model, optim.SGD(model.parameters(), 0.1, momentum=0.9), plain_loss, batches=source)
        if guard is None:
            plain_loop(run)
        else:
            with guard.learning(model, run.optimizer, source, nn.CrossEntropyLoss()) as task:
                plain_loop(run)
                assert task.penalty() == 0
        results.append(model)
    assert equal(*results)


def test_the_order_of_the_sum_does_not_matter():
    def factory(params):
        return optim.SGD(params, 0.3)

    one = afec.EWC(30.0) + afec.AFEC(4.0, epochs=2, optimizer=factory)
    other = afec.AFEC(4.0, epochs=2, optimizer=factory) + afec.EWC(30.0)
    assert one.method == other.method == "ewc+afec"
    assert equal(three_tasks(one), three_tasks(other))


def test_at_the_old_weights_ewc_alone_pulls_by_exactly_nothing():
    model, guard = net(torch.float32), afec.EWC(1e6)
    tensors = data(1, dtype=torch.float32)
    with guard.learning(model, None, tensors, nn.CrossEntropyLoss()):
        pass
    with guard.learning(model, None, tensors, nn.CrossEntropyLoss()) as task:
        plain_loss(model, tensors).backward()
        before = [weight.grad.clone() for weight in model.parameters()]
        task.pull()
        assert all(torch.equal(b, weight.grad) for b, weight in zip(before, model.parameters(), strict=True))
        assert task.penalty() == 0


def test_beta_and_forgetting_are_the_same_number():
    def factory(params):
        return optim.SGD(params, 0.3)

    one = afec.EWC(30.0) + afec.AFEC(beta=0.5, epochs=2, optimizer=factory)
    other = afec.EWC(30.0) + afec.AFEC(forgetting=1.0, epochs=2, optimizer=factory)
    assert equal(three_tasks(one), three_tasks(other))
