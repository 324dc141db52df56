"""The learner over games: what the guard measures, where θ_e comes from, and states in the middle of everything."""

from __future__ import annotations

import copy

import pytest
import torch

pytest.importorskip("gymnasium")

import afec
from afec.learner import StoppedError
from afec.nets import make_backbone
from afec.nets.games import MLP
from afec.rl.environments import find_games
from afec.rl.learner import GameLearner, Measuring
from afec.rl.net import GameNet
from afec.rl.ppo import PPO, new_adam
from stopped_runs import Token

SETTINGS = PPO(steps=256, environments=4, rollout=16, epochs=2, minibatches=2, lr=3e-3)
MEASURING = Measuring(importance_steps=64, episodes=2, evaluations=2, evaluation_episodes=1)
GAMES = ["small_games:Long-v0", "CartPole-v1"]


def learner(guard=None, settings=SETTINGS, measuring=MEASURING, **options):
    games = find_games("gymnasium", GAMES, pad=True)
    torch.manual_seed(0)
    net = GameNet(MLP(4, hidden=8, layers=2), [game.actions for game in games])
    return GameLearner(net, games, guard, settings, measuring, seed=1, **options)


def weights(one):
    return {name: value.detach().clone() for name, value in one.net.state_dict().items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def guard_of(name):
    afec_ = {"forgetting": 10.0, "fisher": "batched"}
    return {
        "finetune": lambda: None,
        "ewc": lambda: afec.EWC(100.0),
        "mas": lambda: afec.MAS(1.0),
        "si": lambda: afec.SI(1.0),
        "recycle": lambda: afec.EWC(100.0) + afec.Recycle(),
        "sequential": lambda: afec.EWC(100.0) + afec.AFEC(**afec_),
        "interleaved": lambda: afec.EWC(100.0) + afec.AFEC(schedule="interleaved", expand_from="carry", **afec_),
        "ags-cl": lambda: afec.AGSCL(10.0, mu=20.0),
        "ags-cl+afec": lambda: afec.AGSCL(10.0, mu=20.0) + afec.AFEC(**afec_),
    }[name]()


METHODS = ["finetune", "ewc", "mas", "si", "recycle", "sequential", "interleaved", "ags-cl", "ags-cl+afec"]


def test_the_fisher_is_that_of_the_policy_on_its_own_rollouts():
    """EWC's F against Σ_a π(a|s)·(∂log π(a|s)/∂θ)², state by state, by autograd."""
    one = learner(afec.EWC(100.0))
    one.learn(0)
    found = one.guard.state_dict()["states"]["ewc"]["precision"]
    one.number = 0  # the same game, the same seeds
    by_hand, count = {name: torch.zeros_like(value) for name, value in found.items()}, 0
    parameters = {name: weight for name, weight in one.net.named_parameters() if name in found}
    for batch in one._rollouts():
        for state in batch.observations:
            log = one.net.policy(state[None], 0)[0].log_softmax(dim=1)[0]
            for action in range(2):
                gradient = torch.autograd.grad(log[action], list(parameters.values()), retain_graph=True)
                for name, g in zip(parameters, gradient, strict=True):
                    by_hand[name] += log[action].exp().detach() * g**2
            count += 1
    assert count == 64
    for name, value in by_hand.items():
        torch.testing.assert_close(found[name], value / count, rtol=1e-4, atol=1e-8)


def test_batched_is_the_squared_gradient_of_the_loss_of_ppo():
    one = learner(afec.EWC(100.0, fisher="batched"))
    one.learn(0)
    found = one.guard.state_dict()["states"]["ewc"]["precision"]
    one.number = 0
    parameters = {name: weight for name, weight in one.net.named_parameters() if name in found}
    squares = {name: torch.zeros_like(value) for name, value in found.items()}
    batches = list(one._rollouts())
    for batch in batches:
        gradient = torch.autograd.grad(one._loss(one.net, batch), list(parameters.values()))
        for name, g in zip(parameters, gradient, strict=True):
            squares[name] += g**2 / len(batches)
    for name, value in squares.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-8)


def test_theta_e_is_a_ppo_of_its_own_from_the_initial_weights():
    one = learner(guard_of("sequential"))
    start = weights(one)
    one.learn(0)
    seen = {}

    def look(update):
        seen.setdefault(update.phase, []).append(update.number)
        seen["guard"] = one.guard

    one.on_update = look
    stop, seen["theta_e weights"] = Token(), None

    def at_last(update):
        look(update)
        if update.phase == "train" and seen["theta_e weights"] is None:
            state = one.guard.state_dict()["task_states"]["afec"]
            seen["theta_e weights"] = state["mean"]

    one.on_update = at_last
    one.learn(1)
    assert stop.asked is False
    assert seen["theta_e"] == seen["train"] == [1, 2, 3, 4]
    alone = learner()
    alone.net.load_state_dict(start)
    alone.number = 1
    loop = alone._loop("theta_e")
    for _ in range(SETTINGS.updates):
        loop.improve(alone.net, 1, loop.collect(alone.net, 1))
    for name, value in seen["theta_e weights"].items():
        assert torch.equal(value, alone.net.state_dict()[name]), name


@pytest.mark.parametrize("rollouts", ["main", "own"])
def test_beside_theta_theta_e_learns_from_the_rollouts_that_are_asked_for(rollouts):
    measuring = Measuring(importance_steps=64, episodes=1, evaluations=0, theta_e_rollouts=rollouts)
    one = learner(guard_of("interleaved"), measuring=measuring)
    one.learn(0)
    played = []

    def look(update):
        played.append((len(one.loop.player.actions), len(one.beside.player.actions)))

    one.on_update = look
    record = one.learn(1)
    steps = [16, 32, 48, 64]
    assert played == [(n, n if rollouts == "own" else 0) for n in steps]
    assert record.epochs_theta_e == record.epochs == 4


def test_each_method_changes_what_is_learned():
    found = {}
    for name in METHODS:
        one = learner(guard_of(name))
        for number in (0, 1):
            one.learn(number)
        found[name] = torch.cat([w.flatten() for w in one.net.guarded_parameters()]).detach()
    names = [name for name in METHODS if name != "recycle"]  # which changes nothing where no unit is dead
    for place, name in enumerate(names):
        for other in names[:place]:
            assert not torch.equal(found[name], found[other]), (name, other)


def stopped_at(at, method):
    """The state after so many updates of a learner that is stopped there, and its updates."""
    stop, saved, seen = Token(), [], []

    def look(update):
        seen.append(update)
        if len(seen) == at + 1:
            saved.append(copy.deepcopy(one.state_dict()))
            stop.asked = True

    one = learner(guard_of(method), on_update=look, stop=stop)
    with pytest.raises(StoppedError):
        for number in (0, 1):
            one.learn(number)
    return saved[0], seen


@pytest.mark.parametrize("method", METHODS)
def test_a_state_in_the_middle_goes_on_bit_for_bit(method):
    whole = learner(guard_of(method))
    for number in (0, 1):
        whole.learn(number)
    count = []
    counting = learner(guard_of(method), on_update=lambda update: count.append(update))
    for number in (0, 1):
        counting.learn(number)
    for at in sorted({1, 5, len(count) - 2}):  # inside the first game, in θ_e or the second, near the end
        saved, seen = stopped_at(at, method)
        second = learner(guard_of(method), on_update=seen.append)
        second.load_state_dict(saved)
        for number in range(second.number, 2):
            second.learn(number)
        assert_equal(weights(second), weights(whole))
        assert second.curve == whole.curve
        assert second.dormant == whole.dormant
        assert [(u.game, u.phase, u.number) for u in seen] == [(u.game, u.phase, u.number) for u in count]


def test_adam_may_be_carried_from_game_to_game():
    ends = {}
    for carry in (False, True):
        one = learner(settings=PPO(**{**vars(SETTINGS), "carry_optimizer": carry}))
        one.learn(0)
        one.learn(1)
        steps = {int(state["step"]) for state in one.optimizer_state["state"].values()}
        ends[carry] = max(steps), weights(one)["backbone.layers.1.weight"]
    assert ends[False][0] == 16
    assert ends[True][0] == 32
    assert not torch.equal(ends[False][1], ends[True][1])


def test_evaluations_are_spread_evenly_and_the_last_is_at_the_end():
    one = Measuring(evaluations=3)
    assert [n for n in range(1, 11) if one.due(n, 10)] == [4, 7, 10]
    assert not any(Measuring(evaluations=0).due(n, 10) for n in range(1, 11))
    assert all(Measuring(evaluations=30).due(n, 4) for n in range(1, 5))


def test_mas_takes_the_logits_or_the_features():
    found = []
    for output in ("policy", "features"):
        one = learner(afec.MAS(1.0), measuring=Measuring(importance_steps=64, evaluations=0, mas_output=output))
        one.learn(0)
        found.append(one.guard.state_dict()["states"]["mas"]["precision"]["backbone.layers.1.weight"])
    assert not torch.equal(*found)


def test_a_fresh_optimiser_knows_all_weights():
    one = learner()
    held = {id(weight) for group in new_adam(one.net, SETTINGS).param_groups for weight in group["params"]}
    assert held == {id(weight) for weight in one.net.parameters()}


# -- AGS-CL ---------------------------------------------------------------------------------------------------------------


def test_ags_cl_measures_its_nodes_on_the_rollouts_of_the_policy():
    """Ω_1 = the mean activation over all that the finished policy sees; Ω_2 = η·Ω_1 + the same of the second game."""
    one, expected = learner(afec.AGSCL(10.0, mu=0, rho=0, cut=False, eta=0.25)), []
    for number in (0, 1):
        record = one.learn(number)
        one.number = number  # the same game, the same seeds
        seen = torch.cat([batch.observations for batch in one._rollouts()])
        one.number = number + 1
        linear = one.net.backbone.layers[1]
        with torch.no_grad():
            expected.append((seen @ linear.weight.T + linear.bias).relu().mean(0))
        assert len(seen) == 64
        assert record.samples == 4 * 64 * 2 + 64  # four updates of two passes over 64 steps, and the rollout of Ω
    omega = one.strategy.state["omega"]["layers.1"]
    torch.testing.assert_close(omega, 0.25 * expected[0] + expected[1])


def test_the_proximal_step_comes_after_each_pass_over_a_rollout_by_hand():
    """No gradient moves the weights at this rate, but μ·lr does: by μ·Σ lr in the end, lr falling, twice an update."""
    settings = PPO(steps=256, environments=4, rollout=16, epochs=2, minibatches=2, lr=1e-9)
    one = learner(afec.AGSCL(0.0, mu=1e7, rho=0, freeze=False, cut=False), settings)
    linear = one.net.backbone.layers[1]

    def norms():
        return torch.cat([linear.weight, linear.bias[:, None]], dim=1).detach().norm(dim=1)

    before = norms()
    one.learn(0)
    moved = 1e7 * 1e-9 * 2 * (1 + 3 / 4 + 2 / 4 + 1 / 4)
    torch.testing.assert_close(norms(), before - moved, rtol=0, atol=1e-5)


def test_important_nodes_hear_nothing_of_the_others_and_are_held():
    ends = {}
    for strength, freeze in ((1e6, True), (0.0, False)):
        one = learner(afec.AGSCL(strength, mu=0, rho=0, cut=False, freeze=freeze))
        one.learn(0)
        for omega in one.strategy.state["omega"].values():  # as if every second node had never been active
            omega[::2], omega[1::2] = 0.0, 0.5
        old = weights(one)
        one.learn(1)
        ends[freeze] = old, weights(one)
    held, first, second = ends[True][1], "backbone.layers.1.weight", "backbone.layers.3.weight"
    assert torch.equal(held[first][1::2], ends[True][0][first][1::2])
    assert not torch.equal(held[first][::2], ends[True][0][first][::2])
    assert not held[second][1::2, ::2].any()
    assert held[second][::2].all()
    for name in (first, second):
        assert not torch.equal(ends[False][1][name][1::2], ends[False][0][name][1::2])
    assert ends[False][1][second].all()


def test_ags_cl_with_all_switched_off_is_finetuning_bit_for_bit():
    ends = []
    for method in (None, afec.AGSCL(0.0, mu=0, rho=0, freeze=False, cut=False)):
        one = learner(method)
        for number in (0, 1):
            one.learn(number)
        ends.append(weights(one))
    assert_equal(*ends)


def test_a_strategy_refuses_a_net_that_is_no_chain_before_anything_is_learned():
    games = find_games("gymnasium", ["CartPole-v1"])
    with pytest.raises(TypeError, match="is no chain of layers"):
        GameLearner(GameNet(make_backbone("resnet10"), [2]), games, afec.AGSCL(1.0), SETTINGS, MEASURING, seed=1)
