"""Lightning's Trainer: automatic optimisation (it always passes a closure), clipping and accumulation."""

import copy

import pytest
import torch
from torch import nn, optim

import afec
from two_tasks import FORGETTING, KINDS, STRENGTH, Penalty, apart, data, loader, net

lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*isinstance.treespec, LeafSpec.",
    "ignore:.*`isinstance\\(treespec",
    "ignore:.*number of training batches",
    "ignore:.*tensorboardX",
)


class Module(lightning.LightningModule):
    def __init__(self, make):
        super().__init__()
        self.net, self.make = net(), make

    def forward(self, x):
        return self.net(x)

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch, number):
        return self.loss(batch)

    def configure_optimizers(self):
        return self.make(self.parameters())


def trainer(**options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(accelerator="cpu", devices=1, max_epochs=2, **quiet, **options)


def reference(module, penalty, batches, clip=None, accumulate=1):
    """Two epochs by hand; the penalty's gradient comes after clipping, which is the documented difference."""
    optimizer = module.make(module.parameters())
    for _ in range(2):
        for number, batch in enumerate(batches, 1):
            (module.loss(batch) / accumulate).backward()
            if number % accumulate and number != len(batches):
                continue
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            penalty.add_to_grads(module)
            optimizer.step()
            optimizer.zero_grad()


OPTIMIZERS = {
    "sgd": lambda params: optim.SGD(params, 0.1, momentum=0.5),
    "adamw": lambda params: optim.AdamW(params, 0.02, fused=True),
}
SETTINGS = {
    "plain": {},
    "clip": {"clip": 0.05},
    "accumulate": {"accumulate": 2},
    "both": {"clip": 0.05, "accumulate": 3},
}


def learn_two_tasks(kind, make, fit, expand_by_trainer=False):
    """The second task under the guard; returns the model, a copy from before it, and the penalty."""
    module = Module(make)
    guard = afec.EWC(STRENGTH)
    if kind != "ewc":
        how = (
            {"expand": lambda: trainer().fit(module, loader(data(2)))}
            if expand_by_trainer
            else {"epochs": 5, "optimizer": lambda params: optim.SGD(params, 0.5)}
        )
        guard = guard + afec.AFEC(FORGETTING, **how)
    for number in (1, 2):
        source, module.trainer = loader(data(number)), None
        before = {name: value.clone() for name, value in module.state_dict().items()}
        with guard.learning(module, None, source, nn.CrossEntropyLoss()):
            assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
            penalty = Penalty(guard)
            fit(module, source)
    twin = Module(make)
    twin.load_state_dict(before)
    assert len(penalty.terms) == 1 + (kind != "ewc")
    return module, twin, penalty


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_fit_is_autograd_on_loss_plus_penalty(setting, name, kind):
    clip, accumulate = SETTINGS[setting].get("clip"), SETTINGS[setting].get("accumulate", 1)

    def fit(module, source):
        trainer(gradient_clip_val=clip, accumulate_grad_batches=accumulate).fit(module, source)

    module, twin, penalty = learn_two_tasks(kind, OPTIMIZERS[name], fit)
    free = copy.deepcopy(twin)
    reference(twin, penalty, list(loader(data(2))), clip, accumulate)
    fit(free, loader(data(2)))
    assert apart(free, twin) > 1e-4
    assert apart(module, twin) < 1e-9


def test_theta_e_trained_by_the_trainer_itself():
    make = OPTIMIZERS["sgd"]
    torch.manual_seed(0)
    init = Module(make)
    torch.manual_seed(0)
    module, twin, penalty = learn_two_tasks(
        "ewc+afec", make, lambda module, source: trainer().fit(module, source), expand_by_trainer=True
    )
    trainer().fit(init, loader(data(2)))
    theta_e = penalty.terms[1][1]
    for name, weight in init.named_parameters():
        torch.testing.assert_close(theta_e[name], weight.detach(), rtol=0, atol=1e-9)
    reference(twin, penalty, list(loader(data(2))))
    assert apart(module, twin) < 1e-9


def test_lbfgs_gets_the_penalty_in_its_loss():
    def make(params):
        return optim.LBFGS(params, 0.3, max_iter=4, line_search_fn="strong_wolfe")

    module, twin, penalty = learn_two_tasks("ewc+afec", make, lambda module, source: trainer().fit(module, source))
    optimizer = make(twin.parameters())
    for batch in list(loader(data(2))) * 2:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = twin.loss(batch) + penalty(twin)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert apart(module, twin) < 1e-7


def test_pull_in_a_hook_of_the_module_clips_both():
    """`task.pull()` in on_after_backward, before Lightning clips."""
    held = {}

    class Pulling(Module):
        def on_after_backward(self):
            held["guard"].task.pull()

    make = OPTIMIZERS["sgd"]
    module = Pulling(make)
    guard = held["guard"] = afec.EWC(STRENGTH)
    for number in (1, 2):
        start = copy.deepcopy(module.state_dict())
        with guard.learning(module, None, loader(data(number)), nn.CrossEntropyLoss()):
            penalty = Penalty(guard)
            trainer(gradient_clip_val=0.05).fit(module, loader(data(number)))
    twin = Module(make)
    twin.load_state_dict(start)
    optimizer = make(twin.parameters())
    for batch in list(loader(data(2))) * 2:
        optimizer.zero_grad()
        (twin.loss(batch) + penalty(twin)).backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
        optimizer.step()
    assert apart(module, twin) < 1e-9


def test_manual_optimisation():
    """`self.optimizers().step()` passes a closure that does nothing."""

    class Manual(Module):
        def __init__(self, make):
            super().__init__(make)
            self.automatic_optimization = False

        def training_step(self, batch, number):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    make = OPTIMIZERS["adamw"]
    module, guard = Manual(make), afec.EWC(STRENGTH)
    for number in (1, 2):
        start = copy.deepcopy(module.state_dict())
        with guard.learning(module, None, loader(data(number)), nn.CrossEntropyLoss()):
            penalty = Penalty(guard)
            trainer().fit(module, loader(data(number)))
    twin = Module(make)
    twin.load_state_dict(start)
    reference(twin, penalty, list(loader(data(2))))
    assert apart(module, twin) < 1e-9
