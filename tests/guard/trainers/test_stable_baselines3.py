"""Stable-Baselines3's PPO over two CartPoles: rollouts as data, `learn()` as the expansion, clipping inside."""

import copy

import pytest
import torch
from torch import optim

import afec
from two_tasks import Penalty, apart, clones

gymnasium = pytest.importorskip("gymnasium")
sb3 = pytest.importorskip("stable_baselines3")

STEPS, STRENGTH, FORGETTING = 128, 2000.0, 500.0


def game(number):
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.length = 0.5 * number  # the second task has a longer pole
    return env


def new_ppo(env):
    options = {"n_steps": 64, "batch_size": 32, "n_epochs": 2, "learning_rate": 3e-3, "seed": 1, "device": "cpu"}
    return sb3.PPO("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, **options)


def ppo_loss(policy, batch):
    """PPO's loss on one minibatch of a rollout buffer, as in `PPO.train`."""
    values, log_prob, entropy = policy.evaluate_actions(batch.observations, batch.actions.long().flatten())
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    ratio = torch.exp(log_prob - batch.old_log_prob)
    gain = torch.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2)).mean()
    return -gain + 0.5 * torch.nn.functional.mse_loss(batch.returns, values.flatten()) - 0.01 * entropy.mean()


def play(ppo, env):
    """The same game with the same luck, whatever was played before."""
    ppo.set_env(env)
    ppo.set_random_seed(7)
    ppo.learn(STEPS)


def optimizer_state(optimizer):
    return copy.deepcopy(optimizer.state_dict())


class PenaltyInTheStep(optim.Adam):
    """The reference: Adam on what PPO leaves in `.grad` after clipping, plus the penalty's gradient by autograd."""

    def step(self, closure=None):
        self.penalty.add_to_grads(self.policy)
        self.steps += 1
        return super().step(closure)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key], key


@pytest.fixture(scope="module")
def learned():
    """Two games under EWC + AFEC, with what was seen at the entry of the second."""
    torch.manual_seed(0)
    ppo = new_ppo(game(1))
    expansions = []

    def expand():
        expansions.append(clones(ppo.policy.state_dict()))
        play(ppo, game(2))

    guard = afec.EWC(STRENGTH, fisher="batched") + afec.AFEC(FORGETTING, fisher="batched", expand=expand)
    init, found = clones(ppo.policy.state_dict()), {}

    def rollouts():
        return ppo.rollout_buffer.get(32)

    for number in (1, 2):
        found["before"] = clones(ppo.policy.state_dict()), optimizer_state(ppo.policy.optimizer)
        found["modes"] = [module.training for module in ppo.policy.modules()]
        found["grads"] = [None if p.grad is None else p.grad.clone() for p in ppo.policy.parameters()]
        with guard.learning(ppo.policy, ppo.policy.optimizer, rollouts, ppo_loss):
            if number == 2:
                found["after"] = clones(ppo.policy.state_dict()), optimizer_state(ppo.policy.optimizer)
                found["modes after"] = [module.training for module in ppo.policy.modules()]
                found["grads after"] = [None if p.grad is None else p.grad.clone() for p in ppo.policy.parameters()]
                found["penalty"] = Penalty(guard, STRENGTH, FORGETTING)
            play(ppo, game(number))
    return ppo, guard, init, expansions, found


def test_learn_is_ppo_with_the_penalty_added_to_clipped_gradients(learned):
    ppo, guard, _, _, found = learned
    weights, state = found["before"]
    results = []
    for penalty in (found["penalty"], None):
        other = new_ppo(game(2))
        other.policy.load_state_dict(weights)
        adam = PenaltyInTheStep if penalty else optim.Adam
        optimizer = adam(other.policy.parameters(), lr=3e-3, eps=1e-5)
        optimizer.load_state_dict(copy.deepcopy(state))  # Adam would count on in `state`
        optimizer.penalty, optimizer.policy, optimizer.steps = penalty, other.policy, 0
        other.policy.optimizer = optimizer
        play(other, game(2))
        assert penalty is None or optimizer.steps == 2 * 2 * 2  # rollouts, epochs, minibatches
        results.append(other.policy)
    reference, free = results
    assert len(found["penalty"].terms) == 2
    assert apart(reference, free) > 1e-2
    assert apart(ppo.policy, reference) < 1e-5
    assert guard.tasks_done == 2


def test_the_expansion_started_from_init_and_put_everything_back(learned):
    _, _, init, expansions, found = learned
    assert len(expansions) == 1
    assert_equal(expansions[0], init)
    assert_equal(found["before"][0], found["after"][0])
    before, after = found["before"][1], found["after"][1]
    assert before["param_groups"] == after["param_groups"]
    assert len(before["state"]) > 0
    for number in before["state"]:
        assert_equal(before["state"][number], after["state"][number])
    assert found["modes"] == found["modes after"]
    for one, other in zip(found["grads"], found["grads after"], strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_theta_e_is_what_learn_gives_from_init(learned):
    _, _, init, _, found = learned
    other = new_ppo(game(2))
    other.policy.load_state_dict(init)
    play(other, game(2))
    theta_e = found["penalty"].terms[1][1]
    for name, weight in other.policy.named_parameters():
        torch.testing.assert_close(theta_e[name], weight.detach(), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom")  # the advantages of a single sample
def test_a_ppo_loss_is_no_mean_of_samples_and_the_error_names_batched():
    ppo = new_ppo(game(1))
    guard = afec.EWC(1.0, fisher="empirical")
    with (
        pytest.raises(ValueError, match="batched"),
        guard.learning(ppo.policy, ppo.policy.optimizer, lambda: ppo.rollout_buffer.get(32), ppo_loss),
    ):
        play(ppo, game(1))
    assert guard.tasks_done == 0
