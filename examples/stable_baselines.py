"""Stable-Baselines3's PPO over two CartPoles, the second with a longer pole; the policy is guarded.

python examples/stable_baselines.py
"""

import gymnasium
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.evaluation import evaluate_policy

import afec


def game(number: int) -> gymnasium.Env:
    """A pole of 0.5 or of 1.5."""
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.length = (0.5, 1.5)[number]
    return env


def ppo_loss(policy, batch) -> torch.Tensor:
    """PPO's loss on one minibatch of a rollout buffer."""
    values, log_prob, entropy = policy.evaluate_actions(batch.observations, batch.actions.long().flatten())
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    ratio = torch.exp(log_prob - batch.old_log_prob)
    gain = torch.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2)).mean()
    return -gain + 0.5 * torch.nn.functional.mse_loss(batch.returns, values.flatten()) - 0.01 * entropy.mean()


def learn(strength: float, steps: int = 4096) -> tuple[float, float]:
    """The mean return in both games after the second was learned."""
    agent = sb3.PPO("MlpPolicy", game(0), n_steps=512, seed=0, device="cpu")
    guard = afec.EWC(strength, fisher="batched")  # PPO's loss is no mean of its samples' losses
    for number in range(2):
        agent.set_env(game(number))

        def rollouts():
            return agent.rollout_buffer.get(64)  # what was played last, in minibatches

        agent.learn(512)  # so that there is a rollout to begin with
        with guard.learning(agent.policy, agent.policy.optimizer, rollouts, ppo_loss):
            agent.learn(steps)
    agent.policy.set_training_mode(False)
    first, second = (evaluate_policy(agent, game(number), 5, warn=False)[0] for number in range(2))
    return first, second


if __name__ == "__main__":
    torch.set_num_threads(1)
    for strength in (0, 1000):
        first, second = learn(strength)
        print(f"strength {strength}: first game {first:.0f}, second game {second:.0f}")
