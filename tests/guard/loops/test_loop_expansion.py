"""The expansion: θ_e and F_e against training by hand, and everything of the user's as it was, bit for bit."""

import copy

import numpy as np
import pytest
import torch
from torch import nn, optim

import afec
from two_tasks import (
    FORGETTING,
    STRENGTH,
    Penalty,
    Run,
    apart,
    data,
    equal,
    exact_fisher,
    loader,
    net,
    plain_loop,
    plain_loss,
    sgd,
)


def trained(start, make, tensors, epochs):
    """A copy of `start`, trained plainly."""
    model = copy.deepcopy(start)
    plain_loop(Run(model, make(model), plain_loss, batches=list(loader(tensors))), epochs)
    return model


def assert_same(tensors, model, tol=1e-9):
    for name, weight in model.named_parameters():
        torch.testing.assert_close(tensors[name], weight.detach(), rtol=0, atol=tol)


OPTIMIZERS = {
    "sgd": lambda model: optim.SGD(model.parameters(), 0.3),
    "adam": lambda model: optim.Adam(model.parameters(), 0.05),
    "adamw-fused": lambda model: optim.AdamW(model.parameters(), 0.05, fused=True),
    "groups": lambda model: optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}], lr=0.3, momentum=0.5
    ),
    "tensor-lr": lambda model: optim.Adam(model.parameters(), torch.tensor(0.05), capturable=False, foreach=False),
    "lbfgs": lambda model: optim.LBFGS(model.parameters(), 0.1, max_iter=2, line_search_fn="strong_wolfe"),
}


def lbfgs_epochs(model, optimizer, batches, epochs):
    for batch in batches * epochs:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = plain_loss(model, batch)
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("expand_from", ["init", "main", "carry"])
def test_theta_e_is_what_training_by_hand_gives(name, expand_from):
    """Three tasks; θ_e starts where `expand_from` says, with the user's optimiser built anew."""
    make, model = OPTIMIZERS[name], net()
    guard = afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, epochs=3, expand_from=expand_from)
    init = carried = copy.deepcopy(model)
    for number in (1, 2, 3):
        tensors, optimizer = data(number), make(model)
        start = {"init": init, "main": model, "carry": carried}[expand_from]
        if name == "lbfgs":
            theta_e = copy.deepcopy(start)
            lbfgs_epochs(theta_e, make(theta_e), list(loader(tensors)), 3)
        else:
            theta_e = trained(start, make, tensors, 3)
        with guard.learning(model, optimizer, loader(tensors), nn.CrossEntropyLoss()):
            task_state = guard.state_dict()["task_states"]["afec"]
            if number == 1:
                assert "mean" not in task_state  # nothing to forget yet
            else:
                carried = theta_e
                assert_same(task_state["mean"], theta_e)
                for weight, f in exact_fisher(theta_e, tensors[0]).items():
                    torch.testing.assert_close(task_state["precision"][weight], f, rtol=1e-7, atol=1e-10)
            if name == "lbfgs":
                lbfgs_epochs(model, optimizer, list(loader(tensors)), 1)
            else:
                plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(tensors))), 1)


def test_nothing_is_kept_beyond_ewc_under_main():
    model = net()
    guard = afec.EWC(1.0) + afec.AFEC(1.0, epochs=2, expand_from="main")
    for number in (1, 2):
        with guard.learning(model, sgd(model), data(number), nn.CrossEntropyLoss()):
            plain_loop(Run(model, sgd(model), plain_loss, batches=list(loader(data(number)))), 1)
    assert not guard.state_dict()["states"]["afec"]["kept"]


def test_the_learning_rate_before_the_schedule():
    """A finished cosine schedule left lr = 0: θ_e is trained at the rate the scheduler started from."""
    model, init = net(), None
    guard = afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, epochs=3)
    init = copy.deepcopy(model)
    optimizer = optim.SGD(model.parameters(), 0.3)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    with guard.learning(model, optimizer, loader(data(1)), nn.CrossEntropyLoss()):
        for _ in range(2):
            plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(1)))), 1)
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0
    with guard.learning(model, optimizer, loader(data(2)), nn.CrossEntropyLoss()):
        assert_same(
            guard.state_dict()["task_states"]["afec"]["mean"],
            trained(init, lambda m: optim.SGD(m.parameters(), 0.3), data(2), 3),
        )
    assert optimizer.param_groups[0]["lr"] == 0


# -- everything is put back -----------------------------------------------------------------------------------------


class Restless(nn.Module):
    """All that a forward pass can change: statistics, a buffer that is replaced, one that is not saved."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3))
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x):
        self.seen = self.seen + len(x)  # another tensor each time
        self.scratch += 1
        return self.frozen(self.body(x))


def everything(model, optimizers):
    """All of it, values and identities."""
    found = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[f"{name} itself"] = id(tensor)
        found[name] = tensor.detach().clone()
    for name, weight in model.named_parameters():
        found[f"{name}.grad itself"] = id(weight.grad)
        found[f"{name}.grad"] = None if weight.grad is None else weight.grad.clone()
        found[f"{name}.requires_grad"] = weight.requires_grad
    for name, module in model.named_modules():
        found[f"{name}.training"] = module.training
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for key, value in group.items():
                found[f"{number} {key}"] = [id(one) for one in value] if key == "params" else copy.deepcopy(value)
        for weight, state in optimizer.state.items():
            for key, value in state.items():
                found[f"{number} {id(weight)} {key}"] = copy.deepcopy(value)
    kind, keys, *rest = np.random.get_state()
    return found | {"torch": torch.get_rng_state(), "numpy": (kind, keys.tolist(), *rest)}


def assert_untouched(before, after):
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name]
        assert same, name


def restless(dtype=torch.float64):
    """A model in mid-training, in mixed modes, with gradients and optimiser states."""
    model = Restless().to(dtype)
    optimizer = optim.Adam(model.body.parameters(), 0.02, amsgrad=True)
    plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(1, dtype=dtype)))), 1)
    model.body[1].eval()
    return model, optimizer


HOW = {
    "epochs": {"epochs": 3},
    "factory": {"epochs": 3, "optimizer": lambda params: optim.SGD(params, 0.1, momentum=0.9)},
    "main": {"epochs": 3, "expand_from": "main", "optimizer": lambda params: optim.SGD(params, 0.1, momentum=0.9)},
    "carry": {"epochs": 3, "expand_from": "carry", "fisher": "batched", "fisher_dropout": True},
}


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("how", HOW)
def test_entering_and_leaving_change_nothing_of_the_users(how, mode):
    model, optimizer = restless()
    guard = afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, **HOW[how])
    for number in (1, 2, 3):
        model.train(mode)
        model.body[1].eval()
        before = everything(model, [optimizer])
        task = guard.begin(model, optimizer, loader(data(number), shuffle=True), nn.CrossEntropyLoss())
        assert_untouched(before, everything(model, [optimizer]))
        model.train()
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(number)))), 1)
        before = everything(model, [optimizer])
        task.end()
        assert_untouched(before, everything(model, [optimizer]))


def test_a_failed_expansion_puts_everything_back():
    model, optimizer = restless()

    def interrupted():
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(2)))), 1)
        model.eval().requires_grad_(True)
        optimizer.param_groups[0]["lr"] = 7.0
        optimizer.add_param_group({"params": model.frozen.parameters()})
        raise KeyboardInterrupt

    guard = afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, expand=interrupted)
    with guard.learning(model, optimizer, loader(data(1)), nn.CrossEntropyLoss()):
        pass
    before = everything(model, [optimizer])
    with pytest.raises(KeyboardInterrupt), guard.learning(model, optimizer, loader(data(2)), nn.CrossEntropyLoss()):
        pytest.fail("the block was entered")
    assert_untouched(before, everything(model, [optimizer]))


def test_expand_with_the_users_own_optimiser_and_scheduler():
    """The user's function trains the model with the very optimiser of the loop, whose state comes back."""
    model = net()
    optimizer = optim.Adam(model.parameters(), 0.05)
    init, calls = copy.deepcopy(model), []

    def expand():
        calls.append(torch.rand(()).item())
        scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(3):
            plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(2)))), 1)
            scheduler.step()

    guard = afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, expand=expand)
    with guard.learning(model, optimizer, loader(data(1)), nn.CrossEntropyLoss()):
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(1)))), 1)
    twin = copy.deepcopy(init)
    other = optim.Adam(twin.parameters(), 0.05)
    scheduler = optim.lr_scheduler.StepLR(other, 1, 0.5)
    for _ in range(3):
        plain_loop(Run(twin, other, plain_loss, batches=list(loader(data(2)))), 1)
        scheduler.step()
    before = everything(model, [optimizer])
    with guard.learning(model, optimizer, loader(data(2)), nn.CrossEntropyLoss()):
        assert len(calls) == 1
        assert_untouched(before, everything(model, [optimizer]))
        assert_same(guard.state_dict()["task_states"]["afec"]["mean"], twin)


class Around(optim.Optimizer):
    """Keeps the inner optimiser under a name of its own, as SAM and many schedules-in-an-optimiser do."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.base_optimizer, self.param_groups = inner, inner.param_groups

    def step(self, closure=None):
        return self.base_optimizer.step(closure) if closure is not None else self.base_optimizer.step()


class KeepsTensors(optim.SGD):
    """Its own moving average, outside `state`."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.average = [torch.zeros_like(p) for group in self.param_groups for p in group["params"]]

    def step(self, closure=None):
        loss = super().step(closure)
        with torch.no_grad():
            for mean, weight in zip(self.average, self.param_groups[0]["params"], strict=True):
                mean.lerp_(weight, 0.5)
        return loss


def test_a_wrapper_with_its_inner_optimiser_under_another_name():
    """Its state is the user's as well, and θ_e starts with an empty one."""
    model = net()
    inner = optim.Adam(model.parameters(), 0.05)
    optimizer, init = Around(inner), copy.deepcopy(model)
    guard = afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, epochs=3)
    with guard.learning(model, optimizer, loader(data(1)), nn.CrossEntropyLoss()):
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(1)))), 1)
    before = everything(model, [inner])
    with guard.learning(model, optimizer, loader(data(2)), nn.CrossEntropyLoss()):
        assert_untouched(before, everything(model, [inner]))
        expected = trained(init, lambda m: optim.Adam(m.parameters(), 0.05), data(2), 3)
        assert_same(guard.state_dict()["task_states"]["afec"]["mean"], expected)


def test_tensors_that_an_optimiser_keeps_outside_its_state():
    model = net()
    optimizer = KeepsTensors(model.parameters(), 0.3)
    guard = afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, epochs=3)
    with guard.learning(model, optimizer, loader(data(1)), nn.CrossEntropyLoss()):
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(1)))), 1)
    before = copy.deepcopy(optimizer.average)
    with guard.learning(model, optimizer, loader(data(2)), nn.CrossEntropyLoss()):
        assert all(torch.equal(one, other) for one, other in zip(before, optimizer.average, strict=True))


def test_weights_of_the_optimiser_that_are_not_in_the_model():
    """A head beside the model, in the same optimiser: trained in θ_e, and put back like the rest."""
    model, head = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).double(), nn.Linear(6, 3).double()
    optimizer = optim.Adam([*model.parameters(), *head.parameters()], 0.05)

    def loss(model, batch):
        return nn.functional.cross_entropy(head(model(batch[0])), batch[1])

    kinds = {"fisher": "empirical"}
    guard = afec.EWC(STRENGTH, **kinds) + afec.AFEC(FORGETTING, epochs=3, **kinds)
    with guard.learning(model, optimizer, loader(data(1)), loss):
        plain_loop(Run(model, optimizer, loss, batches=list(loader(data(1)))), 1)
    both = nn.ModuleList([model, head])
    before = everything(both, [optimizer])
    with guard.learning(model, optimizer, loader(data(2)), loss):
        assert_untouched(before, everything(both, [optimizer]))


def test_hooks_of_the_users_optimiser_do_not_fire_in_the_expansion():
    model, calls = net(), []
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    guard = afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, epochs=3)
    for number in (1, 2):
        with guard.learning(model, optimizer, loader(data(number)), nn.CrossEntropyLoss()):
            assert calls == []


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_block_opened_where_gradients_are_off(context):
    """As from an evaluation callback."""
    results = []
    for off in (False, True):
        torch.manual_seed(0)
        model = net()
        guard = afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, epochs=3)
        for number in (1, 2):
            optimizer = optim.SGD(model.parameters(), 0.3)
            if off:
                with context():
                    task = guard.begin(model, optimizer, loader(data(number)), nn.CrossEntropyLoss())
            else:
                task = guard.begin(model, optimizer, loader(data(number)), nn.CrossEntropyLoss())
            plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(number)))), 1)
            if off:
                with context():
                    task.end()
            else:
                task.end()
        results.append(model)
    assert equal(*results)


def test_the_same_whether_the_model_was_left_in_eval_mode_or_not():
    means = []
    for mode in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.8), nn.Linear(16, 3)).double()
        guard = afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, epochs=4, optimizer=lambda params: optim.SGD(params, 0.1))
        for number in (1, 2):
            model.train(mode)
            with guard.learning(model, sgd(model), loader(data(number)), nn.CrossEntropyLoss()):
                task_state = guard.state_dict()["task_states"]["afec"]
                model.train()
                plain_loop(Run(model, sgd(model), plain_loss, batches=list(loader(data(number)))), 1)
        means.append(task_state["mean"])
    assert all(torch.equal(means[0][name], means[1][name]) for name in means[0])


# -- interleaved ----------------------------------------------------------------------------------------------------


def interleaved(**options):
    return afec.EWC(STRENGTH) + afec.AFEC(FORGETTING, schedule="interleaved", expand_from="init", **options)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_interleaved_by_hand(decay):
    """One epoch of θ_e, F_e, one epoch of θ, and so on; a new learning rate starts a new optimiser for θ_e."""
    model, guard = net(), interleaved()
    theta_e = copy.deepcopy(model)

    def make(model, lr=0.2):
        return optim.Adam(model.parameters(), lr)

    optimizer = make(model)
    with guard.learning(model, optimizer, loader(data(1)), nn.CrossEntropyLoss()) as task:
        for _ in range(3):
            task.epoch()
            plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(1)))), 1)
    model.zero_grad()
    twin, batches = copy.deepcopy(model), list(loader(data(2)))
    optimizer = make(model)
    with guard.learning(model, optimizer, loader(data(2)), nn.CrossEntropyLoss()) as task:
        ewc = Penalty(guard)
        for _ in range(4):
            task.epoch()
            plain_loop(Run(model, optimizer, plain_loss, batches=batches), 1)
            optimizer.param_groups[0]["lr"] *= decay
    main, lr, other = make(twin), 0.2, make(theta_e)
    for _ in range(4):
        plain_loop(Run(theta_e, other, plain_loss, batches=batches), 1)
        f_e, centre = exact_fisher(theta_e, data(2)[0]), dict(theta_e.named_parameters())

        def loss(model, batch, f_e=f_e, centre=centre):
            total = plain_loss(model, batch) + ewc(model)
            for name, weight in model.named_parameters():
                total = total + FORGETTING / 2 * (f_e[name] * (weight - centre[name].detach()) ** 2).sum()
            return total

        plain_loop(Run(twin, main, loss, batches=batches), 1)
        lr *= decay
        main.param_groups[0]["lr"] = lr
        if decay != 1:
            other = make(theta_e, lr)
    assert len(ewc.terms) == 1
    assert apart(model, twin) < 1e-7


def test_interleaved_changes_nothing_of_the_users_at_an_epoch():
    model, optimizer = restless()
    guard = interleaved()
    for number in (1, 2):
        with guard.learning(model, optimizer, loader(data(number)), nn.CrossEntropyLoss()) as task:
            for _ in range(2):
                before = everything(model, [optimizer])
                task.epoch()
                assert_untouched(before, everything(model, [optimizer]))
                model.train()
                plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(number)))), 1)


def test_interleaved_without_epoch_raises():
    model, guard = net(), interleaved()
    for number in (1, 2):
        optimizer = sgd(model)
        if number == 1:
            with guard.learning(model, optimizer, loader(data(1)), nn.CrossEntropyLoss()):
                plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(1)))), 1)
            continue
        with (
            pytest.raises(RuntimeError, match=r"task\.epoch\(\)"),
            guard.learning(model, optimizer, loader(data(2)), nn.CrossEntropyLoss()),
        ):
            plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(2)))), 1)
    assert guard.tasks_done == 1


def test_interleaved_with_expand_and_an_optimiser_replaced_in_mid_task():
    """The user's function uses the present optimiser, which is not the one the block was opened with."""
    model, holder = net(), {}

    def expand():
        plain_loop(Run(model, holder["optimizer"], plain_loss, batches=list(loader(data(2)))), 1)

    guard = interleaved(expand=expand)
    holder["optimizer"] = optim.Adam(model.parameters(), 0.05)
    with guard.learning(model, holder["optimizer"], loader(data(1)), nn.CrossEntropyLoss()):
        pass
    with guard.learning(model, holder["optimizer"], loader(data(2)), nn.CrossEntropyLoss()) as task:
        for _ in range(3):
            before = everything(model, [holder["optimizer"]])
            task.epoch()
            assert_untouched(before, everything(model, [holder["optimizer"]]))
            holder["optimizer"] = optim.Adam(model.parameters(), 0.05)
            plain_loop(Run(model, holder["optimizer"], plain_loss, batches=list(loader(data(2)))), 1)
