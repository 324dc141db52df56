"""PPO beside Stable-Baselines3: the same weights, actions and minibatches come to the same advantages and new weights."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("gymnasium")
pytest.importorskip("stable_baselines3")

import gymnasium
import numpy as np
import stable_baselines3 as sb3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from afec.nets.games import MLP
from afec.rl.environments import find_game
from afec.rl.net import GameNet
from afec.rl.player import Player
from afec.rl.ppo import PPO, collect, improve, minibatches, new_adam

SETTINGS = PPO(steps=3 * 4 * 32, environments=4, rollout=32, epochs=3, minibatches=4, lr=3e-3, value_clip=0.0,
               value_weight=1.0, entropy=0.02, max_grad_norm=0.3)  # fmt: skip
LONGEST = {"CartPole-v1": 15, "Acrobot-v1": 10}
"""Of an episode: shorter than what even a random policy often survives on CartPole, so that some are cut and others end; on
Acrobot all are cut."""
SEED = 100


class Extractor(BaseFeaturesExtractor):
    """Our backbone."""

    def __init__(self, space):
        super().__init__(space, 64)
        self.net = MLP(*space.shape, activation="tanh")

    def forward(self, observations):
        return self.net(observations)


class Nothing(BaseCallback):
    """Looks at no step."""

    def _on_step(self):
        return True


def their_agent(net, game):
    envs = make_vec_env(lambda: gymnasium.make(game, max_episode_steps=LONGEST[game]), SETTINGS.environments, seed=SEED)
    agent = sb3.PPO(
        "MlpPolicy", envs, n_steps=SETTINGS.rollout, batch_size=SETTINGS.batch // SETTINGS.minibatches,
        n_epochs=SETTINGS.epochs, learning_rate=lambda left: SETTINGS.lr * (left + 1 / SETTINGS.updates),
        gamma=SETTINGS.gamma, gae_lambda=SETTINGS.gae_lambda, ent_coef=SETTINGS.entropy,
        vf_coef=SETTINGS.value_weight / 2, max_grad_norm=SETTINGS.max_grad_norm, device="cpu",
        policy_kwargs={"features_extractor_class": Extractor, "net_arch": [],
                       "optimizer_kwargs": {"eps": SETTINGS.adam_eps}},
    )  # fmt: skip
    agent.set_logger(Logger(folder=None, output_formats=[]))
    policy, head = agent.policy, net.heads[0]
    policy.features_extractor.net.load_state_dict(net.backbone.state_dict())
    for layer, rows in ((policy.action_net, slice(None, -1)), (policy.value_net, slice(-1, None))):
        layer.weight.data.copy_(head.weight.data[rows])
        layer.bias.data.copy_(head.bias.data[rows])
    return agent


def their_weights(policy):
    heads = policy.action_net, policy.value_net
    return [
        *policy.features_extractor.net.parameters(),
        torch.cat([head.weight for head in heads]),
        torch.cat([head.bias for head in heads]),
    ]


@pytest.mark.parametrize("name", LONGEST)
def test_updates_come_to_the_weights_of_stable_baselines3(monkeypatch, name):
    game = find_game("gymnasium", name, max_steps=LONGEST[name])
    torch.manual_seed(0)
    net = GameNet(MLP(*game.shape, activation="tanh"), [game.actions])
    agent, optimizer = their_agent(net, name), new_adam(net, SETTINGS)
    player = Player(game, SETTINGS.environments, SEED)
    total, callback = agent._setup_learn(SETTINGS.updates * SETTINGS.batch, Nothing())
    start, ends, cuts = [weight.detach().clone() for weight in net.parameters()], 0, 0
    for update in range(SETTINGS.updates):
        rollout = collect(net, 0, player, SETTINGS.rollout, torch.Generator().manual_seed(update))
        steps = rollout.steps(SETTINGS)
        ends, cuts = ends + int(rollout.terminated.sum()), cuts + int((rollout.ended & ~rollout.terminated).sum())

        taken = iter(rollout.actions)

        def forward(observations, taken=taken):
            actions = next(taken)
            values, log_probs, _ = agent.policy.evaluate_actions(observations, actions)
            return actions, values, log_probs

        monkeypatch.setattr(agent.policy, "forward", forward)
        agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, SETTINGS.rollout)
        buffer = agent.rollout_buffer
        np.testing.assert_array_equal(buffer.observations, rollout.observations.numpy())
        shape = SETTINGS.rollout, SETTINGS.environments
        for part in ("advantages", "returns", "values", "log_probs"):
            expected = getattr(steps, part).reshape(shape).numpy()
            np.testing.assert_allclose(getattr(buffer, part), expected, rtol=1e-5, atol=1e-5, err_msg=part)

        passes = minibatches(SETTINGS.batch, SETTINGS, torch.Generator().manual_seed(update))
        rows = torch.cat([part for one in passes for part in one])
        # Our rows go step by step, theirs environment by environment.
        step, place = rows // SETTINGS.environments, rows % SETTINGS.environments
        orders = iter((place * SETTINGS.rollout + step).reshape(SETTINGS.epochs, -1).numpy())
        monkeypatch.setattr(np.random, "permutation", lambda size, orders=orders: next(orders))
        agent._update_current_progress_remaining(agent.num_timesteps, total)
        agent.train()
        for group in optimizer.param_groups:
            group["lr"] = SETTINGS.lr_at(update)
        improve(net, 0, optimizer, steps, SETTINGS, torch.Generator().manual_seed(update))
        assert agent.policy.optimizer.param_groups[0]["lr"] == pytest.approx(SETTINGS.lr_at(update))
        for mine, theirs in zip(net.parameters(), their_weights(agent.policy), strict=True):
            torch.testing.assert_close(mine.detach(), theirs.detach(), rtol=1e-5, atol=1e-5)
    assert ends > 0 or name == "Acrobot-v1"
    assert cuts > 0
    moved = [
        float((after.detach() - before).abs().max()) for after, before in zip(net.parameters(), start, strict=True)
    ]
    assert min(moved) > 1e-2
