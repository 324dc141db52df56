"""PPO by hand: advantages, both autoreset modes, the loss and its parts, and an update against autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("gymnasium")

from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_games import Count

import afec
from afec.nets.games import MLP
from afec.rl.environments import Game, find_game
from afec.rl.net import GameNet
from afec.rl.player import Player
from afec.rl.ppo import PPO, DivergedError, Steps, advantages, collect, improve, minibatches, new_adam, ppo_terms

G, L = 0.9, 0.5
EVEN = math.log(0.5)


def small_net(actions=2, seed=0):
    torch.manual_seed(seed)
    net = GameNet(MLP(2, hidden=4, layers=1), [actions])
    with torch.no_grad():
        net.heads[0].weight.normal_()
    return net


def columns(*rows):
    return torch.tensor(rows, dtype=torch.float32).T


def test_advantages_by_hand():
    rewards, values, following = columns([1, 2, 3]), columns([0.5, 1.0, 1.5]), columns([1.0, 1.5, 2.0])
    none = torch.zeros(3, 1, dtype=torch.bool)
    third = 3 + G * 2.0 - 1.5
    second = 2 + G * 1.5 - 1.0 + G * L * third
    first = 1 + G * 1.0 - 0.5 + G * L * second
    found = advantages(rewards, values, following, none, none, G, L)
    torch.testing.assert_close(found, columns([first, second, third]))


def test_a_termination_is_worth_nothing_and_a_cut_is_worth_the_last_state():
    rewards, values, following = (
        columns([1, 2], [1, 2]),
        columns([0.5, 1.0], [0.5, 1.0]),
        columns([7.0, 3.0], [7.0, 3.0]),
    )
    ended = torch.tensor([[True, True], [False, False]])
    terminated = torch.tensor([[True, False], [False, False]])
    found = advantages(rewards, values, following, terminated, ended, G, L)
    last = 2 + G * 3.0 - 1.0
    torch.testing.assert_close(found, torch.tensor([[1 - 0.5, 1 + G * 7.0 - 0.5], [last, last]]))


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 10_000))
def test_with_lambda_one_the_return_is_the_discounted_sum_of_rewards(steps, envs, seed):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(steps, envs, generator=generator) for _ in range(2))
    ended = torch.rand(steps, envs, generator=generator) < 0.3
    ended[-1] = True
    following = torch.cat([values[1:], values[:1]])
    returns = advantages(rewards, values, following, ended, ended, G, 1.0) + values
    for env in range(envs):
        ahead = 0.0
        for step in reversed(range(steps)):
            ahead = float(rewards[step, env]) + (0.0 if ended[step, env] else G * ahead)
            assert math.isclose(float(returns[step, env]), ahead, abs_tol=1e-4)


class Vector(Game):
    """The counting game in either autoreset mode."""

    def make(self, count, *, training=True):
        kinds = [lambda: Count(ends=self.options["ends"])] * count
        return SyncVectorEnv(kinds, autoreset_mode=self.options["mode"])


@pytest.mark.parametrize("ends", [True, False])
def test_both_autoreset_modes_give_the_same_advantages_of_real_steps(ends):
    settings, found = PPO(environments=1, rollout=8, minibatches=1, gamma=G, gae_lambda=L), {}
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        player = Player(Vector("gymnasium", "Count", {"mode": mode, "ends": ends}), 1, 5)
        net = small_net()
        with torch.no_grad():  # values and rewards that say where one is: V = 1 + the step, and always action 1
            net.backbone.layers[1].weight.zero_()
            net.backbone.layers[1].weight[0, 0] = 1.0
            net.backbone.layers[1].bias.zero_()
            net.heads[0].weight.zero_()
            net.heads[0].bias.copy_(torch.tensor([0.0, 100.0, 1.0]))
            net.heads[0].weight[2, 0] = 1.0
        rollout = collect(net, 0, player, 8, torch.Generator().manual_seed(0))
        steps = rollout.steps(settings)
        found[mode] = steps
        resets = [False] * 8 if mode == AutoresetMode.SAME_STEP else [False, False, False, True] * 2
        assert (~rollout.real.flatten()).tolist() == resets
        assert player.returns() == [3.0, 3.0]
        value = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}
        third = 1 + (0 if ends else G * value[3]) - value[2]
        second = 1 + G * value[2] - value[1] + G * L * third
        first = 1 + G * value[1] - value[0] + G * L * second
        torch.testing.assert_close(steps.advantages[:6], torch.tensor([first, second, third] * 2))
        torch.testing.assert_close(steps.returns[:3], steps.advantages[:3] + torch.tensor([1.0, 2.0, 3.0]))
    same, following = found.values()
    assert len(same.actions) == 8
    assert len(following.actions) == 6
    torch.testing.assert_close(same.advantages[:6], following.advantages)


def test_actions_are_drawn_with_the_probabilities_of_the_policy():
    net = small_net()
    with torch.no_grad():
        net.heads[0].weight.zero_()
        net.heads[0].bias.copy_(torch.tensor([math.log(0.8), math.log(0.2), 0.0]))
    player = Player(find_game("gymnasium", "small_games:Long-v0"), 50, 0)
    rollout = collect(net, 0, player, 100, torch.Generator().manual_seed(0))
    assert abs(float(rollout.actions.float().mean()) - 0.2) < 4 * math.sqrt(0.16 / 5000)
    torch.testing.assert_close(rollout.log_probs.exp(), torch.where(rollout.actions == 1, 0.2, 0.8))


def batch_of(advantage, action=0, log_prob=EVEN, value=1.0, returns=3.0):
    one = [torch.tensor([part]) for part in (0.0, action, log_prob, value, advantage, returns)]
    return Steps(*one)


@pytest.mark.parametrize(
    ("probability", "advantage", "expected"),
    [
        (0.75, 2.0, -1.2 * 2),  # r = 1.5: no more than 1.2 is gained
        (0.75, -2.0, 1.5 * 2),  # but all of it is lost
        (0.25, 2.0, -0.5 * 2),
        (0.25, -2.0, 0.8 * 2),
        (0.55, 2.0, -1.1 * 2),
    ],
)
def test_the_clipped_objective_by_hand(probability, advantage, expected):
    logits = torch.tensor([[math.log(probability), math.log(1 - probability)]])
    terms = ppo_terms(logits, torch.tensor([1.0]), batch_of(advantage), PPO(), normalise=False)
    torch.testing.assert_close(terms.policy, torch.tensor(expected))
    entropy = -probability * math.log(probability) - (1 - probability) * math.log(1 - probability)
    torch.testing.assert_close(terms.entropy, torch.tensor(entropy))
    ratio = 2 * probability
    torch.testing.assert_close(terms.kl, torch.tensor(ratio - 1 - math.log(ratio)), rtol=1e-4, atol=1e-6)
    assert bool(terms.clipped) == (abs(ratio - 1) > 0.2)


@pytest.mark.parametrize(
    ("value", "clip", "expected"),
    [
        (2.0, 0.2, 0.5 * 1.8**2),  # V_clip = 1.2
        (2.0, 0.0, 0.5 * 1.0**2),
        (1.1, 0.2, 0.5 * 1.9**2),
        (0.0, 0.2, 0.5 * 3.0**2),  # further away: the worse of the two
    ],
)
def test_the_value_loss_by_hand(value, clip, expected):
    settings = PPO(value_clip=clip, value_weight=0.25, entropy=0.0)
    terms = ppo_terms(torch.zeros(1, 2), torch.tensor([value]), batch_of(0.0), settings, normalise=False)
    torch.testing.assert_close(terms.value, torch.tensor(expected))
    torch.testing.assert_close(terms.loss, torch.tensor(0.25 * expected))


def test_advantages_are_normalised_within_a_minibatch_and_can_be_left_as_they_are():
    batch = Steps(*(torch.cat([a, b]) for a, b in zip(batch_of(1.0), batch_of(4.0), strict=True)))
    logits, values = torch.log(torch.tensor([[0.55, 0.45], [0.6, 0.4]])), torch.ones(2)
    spread = 3 / math.sqrt(2)  # the unbiased standard deviation
    by_hand = -(1.1 * -1.5 / spread + 1.2 * 1.5 / spread) / 2
    torch.testing.assert_close(ppo_terms(logits, values, batch, PPO()).policy, torch.tensor(by_hand))
    plain = ppo_terms(logits, values, batch, PPO(normalise_advantages=False)).policy
    torch.testing.assert_close(plain, torch.tensor(-(1.1 * 1 + 1.2 * 4) / 2))


def test_the_learning_rate_falls_linearly_and_updates_are_whole():
    settings = PPO(steps=1000, environments=4, rollout=25, lr=1.0)
    assert settings.updates == 10
    assert [settings.lr_at(update) for update in (0, 5, 9)] == pytest.approx([1.0, 0.5, 0.1])
    assert PPO(lr=1.0, lr_decay=False).lr_at(7) == 1.0
    assert PPO(steps=1).updates == 1


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 3))
def test_every_step_is_in_one_minibatch_of_each_pass(size, parts, epochs):
    settings = PPO(epochs=epochs, minibatches=parts)
    passes = list(minibatches(size, settings, torch.Generator().manual_seed(0)))
    assert [sorted(torch.cat(rows).tolist()) for rows in passes] == [list(range(size))] * epochs
    rows = [part for one in passes for part in one]
    assert max(map(len, rows)) - min(map(len, rows)) <= 1


def some_steps(count=12, seed=3):
    generator = torch.Generator().manual_seed(seed)
    seen, good, back, value = (torch.randn(count, *shape, generator=generator) for shape in ((2,), (), (), ()))
    actions = torch.randint(0, 2, (count,), generator=generator)
    return Steps(seen, actions, torch.full((count,), math.log(0.5)), value, 5 * good, 5 * back)


def test_clipping_cuts_the_gradient_of_the_loss_and_not_the_pull():
    """One step of SGD by hand: the loss's gradient cut to its length, then the pull of EWC added to it."""
    settings = PPO(epochs=1, minibatches=1, max_grad_norm=0.01, lr=0.1)
    net, steps = small_net(), some_steps()
    guard = afec.EWC(strength=50.0, fisher="batched")
    data = lambda: iter([steps])  # noqa: E731
    loss = lambda model, batch: ppo_terms(*net.policy(batch.observations, 0), batch, settings).loss  # noqa: E731
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with guard.learning(net, optimizer, data, loss):
        pass
    anchor = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    fisher = guard.state_dict()["states"]["ewc"]["precision"]
    with guard.learning(net, optimizer, data, loss):
        with torch.no_grad():
            for weight in net.backbone.parameters():
                weight += 0.05
            guard.task.accept()
        start = {name: weight.detach().clone() for name, weight in net.named_parameters()}
        value = ppo_terms(*net.policy(steps.observations, 0), steps, settings).loss
        plain = dict(zip(start, torch.autograd.grad(value, list(net.parameters())), strict=True))
        improve(net, 0, optimizer, steps, settings, torch.Generator().manual_seed(0))
        length = torch.sqrt(sum((g**2).sum() for g in plain.values()))
        assert float(length) > 0.1  # it is cut
        for name, weight in net.named_parameters():
            pull = 50.0 * fisher[name] * (start[name] - anchor[name]) if name in fisher else 0.0
            expected = start[name] - 0.1 * (plain[name] * 0.01 / (length + 1e-6) + pull)
            torch.testing.assert_close(weight.detach(), expected, rtol=1e-4, atol=1e-6)


def test_a_loss_that_is_no_number_is_said():
    steps = some_steps()
    broken = steps._replace(returns=steps.returns * float("nan"))
    net = small_net()
    with pytest.raises(DivergedError, match="Lower training.lr"):
        improve(net, 0, new_adam(net, PPO()), broken, PPO(), torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps must be at least 1; got 0"),
        ({"lr": 0.0}, "lr must be a finite number > 0"),
        ({"gamma": 1.5}, r"gamma must be in \[0, 1\]; got 1.5"),
        ({"entropy": -1.0}, "entropy must be a finite number ≥ 0"),
        ({"environments": 1, "rollout": 2, "minibatches": 4}, "at most the 2 steps of a rollout"),
    ],
)
def test_settings_that_cannot_be(options, words):
    with pytest.raises(ValueError, match=words):
        PPO(**options)


def test_a_head_has_the_actor_and_the_critic_of_its_game_alone():
    net = GameNet(MLP(2, hidden=8), [3, 5])
    logits, values = net.policy(torch.randn(7, 2), 1)
    assert logits.shape == (7, 5)
    assert values.shape == (7,)
    for head in net.heads:
        rows = head.weight[:-1] @ head.weight[:-1].T
        torch.testing.assert_close(rows, 1e-4 * torch.eye(len(rows)), rtol=0, atol=1e-8)
        torch.testing.assert_close(head.weight[-1].norm(), torch.tensor(1.0))
    guarded = list(net.guarded_parameters())
    assert len(guarded) == 4
    assert not {id(weight) for head in net.heads for weight in head.parameters()} & {id(weight) for weight in guarded}


def test_pixels_are_divided_by_255():
    net = GameNet(MLP(4, hidden=4), [2])
    pixels = torch.tensor(np.arange(8).reshape(2, 4), dtype=torch.uint8)
    torch.testing.assert_close(net.features(pixels, 0), net.features(pixels.float() / 255, 0))
    torch.testing.assert_close(net.features(pixels > 3, 0), net.features((pixels > 3).float(), 0))
