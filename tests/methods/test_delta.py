"""EWC on LoRA's change ΔW = s·B·A, against numbers worked by hand; legs, merging, anchors, and a base posterior from a file."""

import copy

import pytest
import torch
from torch import nn

import afec
from afec.posterior import Posterior

peft = pytest.importorskip("peft")


class Net(nn.Module):
    """One matrix, so that everything can be written down."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))

    def forward(self, x):
        return self.layer(x)


def with_lora(model, alpha=2):
    config = peft.LoraConfig(r=1, lora_alpha=alpha, target_modules=["layer"])
    return peft.get_peft_model(model, config)


def factors(model):
    layer = model.base_model.model.layer
    return layer.lora_A["default"].weight, layer.lora_B["default"].weight


def put(model, a, b):
    with torch.no_grad():
        factors(model)[0].copy_(torch.tensor([a]))
        factors(model)[1].copy_(torch.tensor(b)[:, None])


X = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
DATA = (X, torch.zeros(1, 2, dtype=torch.float64))
NAME = "base_model.model.layer.base_layer.weight"
# One sample x = (1, 2); MSELoss over two outputs: the Fisher of output j is 1·x², so F = [[1, 4], [1, 4]] (docs/fisher.md).
FISHER = torch.tensor([[1.0, 4.0], [1.0, 4.0]], dtype=torch.float64)


def consolidate(guard, model):
    with guard.learning(model, None, DATA, nn.MSELoss()):
        pass


def pulled(guard, model):
    """The pull on A and B, and the penalty, in a task of zero loss gradient."""
    for weight in factors(model):
        weight.grad = torch.zeros_like(weight)
    task = guard.begin(model, None, DATA, nn.MSELoss())
    task.pull()
    found = [weight.grad.clone() for weight in factors(model)], float(task.penalty()), float(task.penalties()["old"])
    task.abort()
    model.zero_grad()
    return found


def test_fisher_penalty_and_pull_by_hand():
    """s = 2. ΔW* = 2·(1, 0)ᵀ(1, 1) = [[2, 2], [0, 0]]; now A = (1, 0), B = (0, 1)ᵀ: ΔW = [[0, 0], [2, 0]].

    ΔW − ΔW* = [[−2, −2], [2, 0]]; ½ΣF(·)² = ½(4 + 16 + 4) = 12; λ = 10: 120.
    G = λF(·) = [[−20, −80], [20, 0]]; by A: s·Bᵀ·G = 2·(20, 0) = (40, 0); by B: s·G·Aᵀ = 2·(−20, 20)ᵀ = (−40, 40)ᵀ.
    """
    model = with_lora(Net())
    put(model, [1.0, 1.0], [1.0, 0.0])
    guard = afec.EWC(10.0, on="delta", fisher="exact")
    consolidate(guard, model)
    state = guard.state_dict()["states"]["ewc"]
    torch.testing.assert_close(state["precision"][NAME], FISHER)
    assert not model.base_model.model.layer.base_layer.weight.requires_grad
    put(model, [1.0, 0.0], [0.0, 1.0])
    (by_a, by_b), penalty, old = pulled(guard, model)
    assert penalty == old == pytest.approx(120)
    torch.testing.assert_close(by_a, torch.tensor([[40.0, 0.0]], dtype=by_a.dtype))
    torch.testing.assert_close(by_b, torch.tensor([[-40.0], [40.0]], dtype=by_b.dtype))


def test_to_the_base_from_the_first_leg_on():
    """ΔW* = 0, F measured on entry: ΔW = [[0, 0], [2, 0]], ½ΣF·ΔW² = ½·1·4 = 2; λ = 10: 20. It stays so in later legs."""
    model, guard = with_lora(Net()), afec.EWC(10.0, on="delta", anchor="base", fisher="exact")
    put(model, [1.0, 0.0], [0.0, 1.0])
    (by_a, by_b), penalty, _ = pulled(guard, model)
    assert penalty == pytest.approx(20)
    torch.testing.assert_close(by_b, torch.tensor([[0.0], [40.0]], dtype=by_b.dtype))
    for _ in range(2):
        consolidate(guard, model)
    assert pulled(guard, model)[1] == pytest.approx(20)
    torch.testing.assert_close(guard.state_dict()["states"]["ewc"]["precision"][NAME], FISHER)


def test_the_pull_is_autograd_on_the_penalty():
    torch.manual_seed(1)
    model, guard = with_lora(Net(), alpha=3), afec.EWC(7.0, on="delta", fisher="exact")
    put(model, [0.3, -0.7], [0.2, 0.9])
    consolidate(guard, model)
    star = 3 * factors(model)[1].detach() @ factors(model)[0].detach()
    put(model, [-0.5, 0.4], [1.1, 0.1])
    a, b = (weight.detach().clone().requires_grad_() for weight in factors(model))
    (7.0 / 2 * (FISHER * (3 * b @ a - star) ** 2).sum()).backward()
    (by_a, by_b), _, _ = pulled(guard, model)
    torch.testing.assert_close(by_a, a.grad)
    torch.testing.assert_close(by_b, b.grad)


@pytest.mark.parametrize("anchor", ["last", "base"])
def test_a_merged_leg_is_the_same_as_one_that_was_not(anchor):
    """Leg 1 leaves ΔW₁; then the same total change ΔW is asked for with leg 1 in the adapter, and merged into the base."""
    model, guard = with_lora(Net()), afec.EWC(10.0, on="delta", anchor=anchor, fisher="exact")
    consolidate(guard, model) if anchor == "base" else None
    put(model, [1.0, 1.0], [1.0, 0.0])  # ΔW₁ = [[2, 2], [0, 0]]
    consolidate(guard, model)
    known = guard.state_dict()
    put(model, [1.0, 1.0], [1.0, 0.5])  # ΔW = [[2, 2], [1, 1]]
    apart = pulled(guard, model)[1]

    put(model, [1.0, 1.0], [1.0, 0.0])
    merged = with_lora(model.merge_and_unload())
    put(merged, [1.0, 1.0], [0.0, 0.5])  # ΔW − ΔW₁ = [[0, 0], [1, 1]]
    again = afec.EWC(10.0, on="delta", anchor=anchor, fisher="exact")
    again.load_state_dict(known)
    assert pulled(again, merged)[1] == pytest.approx(apart)
    # To the leg before: ½·10·(1·1 + 4·1) = 25; to the base ½·10·(4 + 16 + 1 + 4) = 125.
    assert apart == pytest.approx(25 if anchor == "last" else 125)
    consolidate(again, merged)  # and once more
    third = with_lora(merged.merge_and_unload())
    put(third, [1.0, 0.0], [0.0, 0.0])
    assert pulled(again, third)[1] == pytest.approx(0 if anchor == "last" else 125)


def test_merged_for_a_while():
    """`merge_adapter` in place, as for inference: no training then, and nothing of what is held has changed after it."""
    model, guard = with_lora(Net()), afec.EWC(10.0, on="delta", fisher="exact")
    put(model, [1.0, 1.0], [1.0, 0.0])
    consolidate(guard, model)
    model.merge_adapter()
    with pytest.raises(ValueError, match="no guarded weight gets a gradient"):
        consolidate(guard, model)
    model.unmerge_adapter()
    put(model, [1.0, 0.0], [0.0, 1.0])
    assert pulled(guard, model)[1] == pytest.approx(120)


def test_another_base_is_refused():
    model, guard = with_lora(Net()), afec.EWC(10.0, on="delta", fisher="exact")
    put(model, [1.0, 1.0], [1.0, 0.0])
    consolidate(guard, model)
    with torch.no_grad():
        model.base_model.model.layer.base_layer.weight += 0.3
    with pytest.raises(ValueError, match=f"the frozen weight '{NAME}' is neither what it was in the leg before nor"):
        consolidate(guard, model)


def test_what_it_is_not_for():
    with pytest.raises(ValueError, match='EWC\\(on="delta"\\) holds the change'):
        consolidate(afec.EWC(1, on="delta", fisher="exact"), Net())
    with pytest.raises(ValueError, match='strength="auto"\\) goes with on="weights"'):
        afec.EWC("auto", on="delta")
    with pytest.raises(ValueError, match='anchors="each"\\) goes with on="weights"'):
        afec.EWC(1, anchor="base", anchors="each")
    config = peft.LoraConfig(r=1, target_modules=["layer"], use_dora=True)
    with pytest.raises(ValueError, match='on="delta" needs plain LoRA'):
        consolidate(afec.EWC(1, on="delta", fisher="exact"), peft.get_peft_model(Net(), config))


def test_the_posterior_of_the_base_holds_an_adapter(tmp_path):
    """Measured without LoRA; used on its ΔW."""
    path = tmp_path / "base.safetensors"
    made = afec.EWC(1, fisher="exact")
    consolidate(made, Net())
    made.save_posterior(path, mean=False)
    assert torch.equal(Posterior.load(path).precision["layer.weight"], FISHER)
    model, guard = with_lora(Net()), afec.EWC(10.0, on="delta", anchor="base", fisher="exact")
    guard.load_posterior(path, model)
    put(model, [1.0, 0.0], [0.0, 1.0])
    assert pulled(guard, model)[1] == pytest.approx(20)
    other = Net()
    with torch.no_grad():
        other.layer.weight += 1
    with pytest.raises(ValueError, match="measured at other weights"):
        afec.EWC(10.0, on="delta", fisher="exact").load_posterior(path, with_lora(other))


def learn(model, guard, target, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(64, 2, dtype=torch.float64)
    data = (x, x @ target.T)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.05)
    with guard.learning(model, optimizer, data, nn.MSELoss()):
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(data[0]), data[1]).backward()
            optimizer.step()


def test_legs_resume_and_switch():
    """Two legs: holding ΔW, holding A and B apart, and holding nothing are three results; a state goes on bit for bit."""
    targets = [torch.tensor([[2.0, 1.0], [0.0, 1.0]]).double(), torch.tensor([[1.0, 0.0], [1.5, 1.0]]).double()]
    found = {}
    for on, strength in (("delta", 3.0), ("weights", 3.0), ("delta", 0)):
        torch.manual_seed(0)
        model, guard = with_lora(Net()), afec.EWC(strength, on=on, fisher="exact")
        learn(model, guard, targets[0])
        start, known = copy.deepcopy(model), copy.deepcopy(guard.state_dict())
        learn(model, guard, targets[1])
        found[on, strength] = [weight.detach().clone() for weight in factors(model)]
        again = afec.EWC(strength, on=on, fisher="exact")
        again.load_state_dict(known)
        learn(start, again, targets[1])
        assert all(torch.equal(one, other) for one, other in zip(factors(start), factors(model), strict=True))
    results = list(found.values())
    for one in range(3):
        for other in range(one):
            assert float((results[one][0] - results[other][0]).abs().max()) > 1e-3
