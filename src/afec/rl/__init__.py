"""Reinforcement learning: PPO, environments, and the learner over games."""

__all__: list[str] = []
