"""The seed of a guard: an argument, or that of torch's generator."""

import torch
from torch import nn

import afec


def sampled_fisher(outside, seed=None, again=None):
    """What a sampled Fisher finds: it depends on what is drawn."""
    torch.manual_seed(7)
    model, data = nn.Linear(3, 4), (torch.randn(20, 3), torch.arange(20) % 4)
    torch.manual_seed(outside)
    guard = afec.EWC(1.0, fisher="sample")
    for one in (seed, again):
        with guard.learning(model, torch.optim.SGD(model.parameters(), 0.1), data, nn.CrossEntropyLoss(), seed=one):
            pass
    return guard.state_dict()["seed"], guard.state_dict()["states"]["ewc"]["precision"]["weight"]


def test_a_seed_that_is_given_is_the_one_that_is_used_whatever_torchs_generator_has():
    seed, found = sampled_fisher(outside=1, seed=5)
    assert seed == 5
    assert sampled_fisher(outside=2, seed=5)[1].equal(found)
    assert sampled_fisher(outside=5)[1].equal(found)  # by default that of torch's generator
    assert not sampled_fisher(outside=1)[1].equal(found)


def test_it_is_taken_in_the_first_task():
    assert sampled_fisher(outside=1, seed=5, again=6)[0] == 5
