"""Two processes with DDP (gloo): one Fisher, one θ_e, one result; models that the first FSDP has sharded are refused."""

import ddp_workers
import pytest
import torch
from torch import nn

import afec
from small_processes import several
from two_tasks import FORGETTING, STRENGTH, Run, data, exact_fisher, loader, net, plain_loop, plain_loss, sgd


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    several(ddp_workers.work, folder, ddp_workers.WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ddp_workers.WORLD)]


def at(weights):
    model = net()
    model.load_state_dict(weights)
    return model


def assert_close(found, expected, tol=1e-9):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-8, atol=tol)


@pytest.mark.parametrize("how", ["plain", "pull", "views"])
def test_both_processes_have_the_same(how, ranks):
    one, other = (rank[how] for rank in ranks)
    for part in one:
        assert all(torch.equal(one[part][name], other[part][name]) for name in one[part]), part


def test_the_fisher_is_that_of_all_data(ranks):
    found = ranks[0]["plain"]
    first = exact_fisher(at(found["mean 1"]), data(1)[0])
    assert_close(found["fisher 1"], first)
    second = exact_fisher(at(found["mean 2"]), data(2)[0])
    assert_close(found["fisher 2"], {name: (first[name] + second[name]) / 2 for name in first})


def test_theta_e_is_of_all_data_and_so_is_its_fisher(ranks):
    found = ranks[0]["plain"]
    assert_close(found["f_e"], exact_fisher(at(found["theta_e"]), data(2)[0]))
    with torch.no_grad():
        before, after = (plain_loss(at(found[part]), data(2)) for part in ("start 1", "theta_e"))
    assert after < before - 0.2


@pytest.mark.parametrize("how", ["plain", "pull", "views"])
def test_the_weights_are_those_of_one_process_on_loss_plus_penalty(how, ranks):
    """`pull`: task.pull() after each of four backwards, each of which ends in a reduction, counts once."""
    found = ranks[0][how]
    terms = [(STRENGTH, "mean 1", "fisher 1"), (FORGETTING, "theta_e", "f_e")]

    def loss(model, batch):
        total = plain_loss(model, batch)
        for weight, mean, fisher in terms:
            for name, value in model.named_parameters():
                total = total + weight / 2 * (found[fisher][name] * (value - found[mean][name]) ** 2).sum()
        return total

    model = at(found["start 2"])
    plain_loop(Run(model, sgd(model), loss, batches=list(loader(data(2)))))
    assert_close(found["end"], {name: value.detach() for name, value in model.named_parameters()})


@pytest.mark.parametrize("how", ["plain", "pull"])
def test_paths_and_sensitivities_are_those_of_one_process(how, ranks):
    torch.manual_seed(0)
    model, guard = net(), afec.SI(5.0) + afec.MAS(0.1)
    for number in (1, 2):
        optimizer = sgd(model)
        with guard.learning(model, optimizer, data(number), nn.CrossEntropyLoss()) as task:
            for batch in list(loader(data(number))) * 3:
                optimizer.zero_grad()
                plain_loss(model, batch).backward()
                if how == "pull":
                    task.pull()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.2)
                optimizer.step()
    for rank in ranks:
        for name, found in rank["paths"][how].items():
            assert_close(found, guard.state_dict()["states"][name]["precision"], tol=1e-10)


def test_an_expansion_that_fails_in_one_process_fails_in_all(ranks):
    one, other = (rank["diverges"] for rank in ranks)
    assert one.startswith("FloatingPointError: the loss of θ_e became")
    assert other.startswith("RuntimeError: the expansion failed in the first process: FloatingPointError")


def test_the_processes_agree_whether_the_expansion_learned_anything(ranks):
    """Otherwise one would leave and the others wait for it for ever."""
    one, other = (rank["disagrees"] for rank in ranks)
    assert one.split(":")[:2] == other.split(":")[:2]
    assert one == "went on" or "learned nothing" in one


def test_the_wrapper_of_the_first_fsdp_is_refused_by_its_name():
    class FullyShardedDataParallel(nn.Sequential):
        pass

    model = FullyShardedDataParallel(nn.Linear(4, 3))
    for given in (model, nn.Sequential(model)):
        with pytest.raises(TypeError, match=r"sharded \(FSDP\).*Use FSDP2 .* or DDP"):
            afec.EWC(1.0).begin(given, None, (torch.zeros(2, 4), torch.zeros(2).long()), nn.CrossEntropyLoss())
