"""A posterior as a file: what is in it, what begins from it, and what is refused by name."""

import pytest
import torch
from safetensors import safe_open
from torch import nn

import afec
from afec.cli import main
from afec.files import FileError, load_tree, save_tree
from afec.posterior import Posterior, hash_of
from damaged_files import damaged
from two_tasks import Run, apart, data, exact_fisher, loader, net, plain_loop, plain_loss, sgd


@pytest.fixture
def base():
    """A model that somebody has trained."""
    model = net()
    plain_loop(
        Run(model, torch.optim.SGD(model.parameters(), 0.5), plain_loss, batches=list(loader(data(1)))), epochs=8
    )
    model.zero_grad()
    return model


def measured(model, path, **options):
    guard = afec.EWC(30.0)
    with guard.learning(model, None, data(1), nn.CrossEntropyLoss()):
        pass
    guard.save_posterior(path, **options)
    return guard


def learn(guard, model):
    optimizer = sgd(model)
    with guard.learning(model, optimizer, data(2), nn.CrossEntropyLoss()):
        plain_loop(Run(model, optimizer, plain_loss, batches=list(loader(data(2)))))


def copy_of(model):
    twin = net()
    twin.load_state_dict(model.state_dict())
    return twin


def test_what_is_in_the_file(base, tmp_path):
    measured(base, tmp_path / "p.safetensors", checkpoint="the base")
    found = Posterior.load(tmp_path / "p.safetensors")
    assert (found.method, found.fisher, found.samples, found.tasks) == ("ewc", "exact", 24, 1)
    assert found.checkpoint == "the base"
    assert found.loss == pytest.approx(plain_loss(base, data(1)).item(), rel=1e-9)
    assert found.weights_hash == hash_of(dict(base.named_parameters()))
    for name, fisher in exact_fisher(base, data(1)[0]).items():
        torch.testing.assert_close(found.precision[name], fisher)
        assert torch.equal(found.mean[name], base.get_parameter(name))
    with safe_open(tmp_path / "p.safetensors", framework="pt") as file:  # as any other reader sees it
        assert torch.equal(file.get_tensor("precision.0.weight"), found.precision["0.weight"])


@pytest.mark.parametrize("mean", [True, False])
def test_others_begin_where_it_was_measured(mean, base, tmp_path):
    own = measured(base, tmp_path / "p.safetensors", mean=mean)
    there, here = copy_of(base), copy_of(base)
    guard = afec.EWC(30.0)
    guard.load_posterior(tmp_path / "p.safetensors", there)
    assert guard.tasks_done == 1
    free = copy_of(base)
    learn(afec.EWC(0), free)
    learn(own, here)
    learn(guard, there)
    assert apart(here, there) == 0
    assert apart(here, free) > 1e-3


def test_a_sum_takes_it_too(base, tmp_path):
    measured(base, tmp_path / "p.safetensors")
    guard = afec.EWC(30.0) + afec.AFEC(4.0, epochs=2)
    guard.load_posterior(tmp_path / "p.safetensors", base)
    optimizer = sgd(base)
    with guard.learning(base, optimizer, data(2), nn.CrossEntropyLoss()) as task:
        assert set(task.task_states["afec"]) >= {"mean", "precision"}  # it is the second task: θ_e is learned


def test_what_is_refused(base, tmp_path):
    path = tmp_path / "p.safetensors"
    own = measured(base, path, mean=False, checkpoint="the base")
    with pytest.raises(ValueError, match=r"weight '0.weight', which this model has not.*another model \(the base\)"):
        afec.EWC(1).load_posterior(path, nn.Linear(4, 3))
    wider = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))
    with pytest.raises(ValueError, match=r"weight '0.weight' has shape \(6, 4\) there and \(7, 4\) in this model"):
        afec.EWC(1).load_posterior(path, wider)
    with pytest.raises(ValueError, match="measured at other weights"):
        afec.EWC(1).load_posterior(path, net())
    with pytest.raises(ValueError, match="posterior of 'ewc', and this guard is 'mas'"):
        afec.MAS(1).load_posterior(path, base)
    with pytest.raises(ValueError, match="measured by the 'exact' Fisher and this guard has fisher='empirical'"):
        afec.EWC(1, fisher="empirical").load_posterior(path, base)
    with pytest.raises(RuntimeError, match="has learned already"):
        own.load_posterior(path, base)
    with pytest.raises(RuntimeError, match="it has learned nothing yet"):
        afec.EWC(1).save_posterior(tmp_path / "q.safetensors")
    tree = load_tree(path)
    save_tree(path, {**tree, "version": 2})
    with pytest.raises(FileError, match="a posterior of version 2, and this afec reads version 1"):
        Posterior.load(path)
    save_tree(path, {"kind": "something"})
    with pytest.raises(FileError, match="it is no posterior"):
        Posterior.load(path)


def test_a_damaged_file_is_refused(base, tmp_path):
    path = tmp_path / "p.safetensors"
    measured(base, path)
    whole = path.read_bytes()
    for how, broken in damaged(whole):
        path.write_bytes(broken)
        if broken != whole:
            with pytest.raises(FileError):
                pytest.fail(f"{how}: {Posterior.load(path)}")


def test_the_command(base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.save(base.state_dict(), "base.pt")
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\nfrom two_tasks import data, net\n\n\ndef base():\n    model = net()\n"
        "    model.load_state_dict(torch.load('base.pt'))\n    return model, data(1), nn.CrossEntropyLoss()\n"
    )
    command = ["posterior", "make", "mine.py:base", "-o", "made.safetensors", "--no-mean", "--checkpoint", "the base"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "exact" in shown
    assert "the base" in shown
    measured(base, tmp_path / "own.safetensors", mean=False)
    one, other = Posterior.load("made.safetensors"), Posterior.load("own.safetensors")
    assert one.mean is None
    assert one.weights_hash == other.weights_hash
    assert all(torch.equal(one.precision[name], value) for name, value in other.precision.items())
    assert main(["posterior", "show", "own.safetensors"]) == 0
    assert "2.bias" in capsys.readouterr().out
    assert main(["posterior", "show", "base.pt"]) == 2
    assert main(["posterior", "make", "mine.py:nothing"]) == 2
