"""PPO beside Stable-Baselines3's, with the same net, environments, settings and steps: `python bench/games.py`.

By default: environment steps per CPU second of whole iterations (rollout and update), turn by turn in one run, on CartPole,
MinAtar's Breakout and Atari's Boxing; what an iteration under EWC + AFEC costs beside fine-tuning.
Only ratios of neighbours mean anything on a shared machine.

`--curves FILE`: learn a game with both over several seeds and write the returns of the episodes on the way as CSV.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import afec
from afec.nets import make_backbone
from afec.rl.environments import Game, find_game
from afec.rl.learner import GameLearner, Measuring
from afec.rl.net import GameNet
from afec.rl.player import Player
from afec.rl.ppo import PPO, collect, improve, new_adam

GAMES = {
    "CartPole": ("gymnasium", "CartPole-v1", "mlp"),
    "Acrobot": ("gymnasium", "Acrobot-v1", "mlp"),
    "Breakout": ("minatar", "Breakout", "minatar"),
    "Boxing": ("atari", "Boxing", "atari"),
}
SETTINGS = {
    "mlp": PPO(environments=8, rollout=64, epochs=8, minibatches=4, lr=1e-3, gae_lambda=0.9, entropy=0.0, value_clip=0.0,
               value_weight=1.0),
    "minatar": PPO(environments=16, rollout=128, epochs=4, minibatches=4, lr=1e-3, value_clip=0.0, value_weight=1.0),
    "atari": PPO(environments=8, rollout=32, epochs=4, minibatches=4, value_clip=0.0, value_weight=1.0),
}  # fmt: skip


def options_of(net: str, game: Game) -> dict[str, Any]:
    inputs = int(np.prod(game.shape))
    return {"mlp": {"inputs": inputs, "activation": "tanh"}, "minatar": {}, "atari": {"width": 0.25}}[net]


def ours(name: str, settings: PPO, seed: int) -> Callable[[], list[float]]:
    """One iteration, which returns the returns of finished episodes."""
    suite, game_name, kind = GAMES[name]
    game = find_game(suite, game_name)
    torch.manual_seed(seed)
    net = GameNet(make_backbone(kind, **options_of(kind, game)), [game.actions]).to(memory_format=torch.channels_last)
    player, optimizer = Player(game, settings.environments, 1000 * seed), new_adam(net, settings)
    generator, update = torch.Generator().manual_seed(seed), 0

    def iteration() -> list[float]:
        nonlocal update
        for group in optimizer.param_groups:
            group["lr"] = settings.lr_at(update)
        steps = collect(net, 0, player, settings.rollout, generator).steps(settings)
        improve(net, 0, optimizer, steps, settings, generator)
        update += 1
        return player.returns()

    return iteration


def theirs(name: str, settings: PPO, seed: int) -> Callable[[], list[float]]:
    """The same by Stable-Baselines3."""
    import gymnasium
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

    suite, game_name, kind = GAMES[name]
    game = find_game(suite, game_name)

    class Extractor(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, 1)
            self.net = make_backbone(kind, **options_of(kind, game))
            self._features_dim = self.net.out_features

        def forward(self, observations: Tensor) -> Tensor:
            return self.net(observations.float())

    class Padded(gymnasium.ObservationWrapper[Any, Any, Any]):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.observation_space = gymnasium.spaces.Box(0, 1, (10, 10, 10), dtype=np.float32)

        def observation(self, observation: Any) -> Any:
            picture = np.zeros((10, 10, 10), dtype=np.float32)
            picture[: observation.shape[2]] = observation.transpose(2, 0, 1)
            return picture

    count = settings.environments
    if suite == "atari":
        import ale_py

        gymnasium.register_envs(ale_py)
        envs: Any = VecTransposeImage(VecFrameStack(make_atari_env(f"{game_name}NoFrameskip-v4", count, seed=seed), 4))
    elif suite == "minatar":
        from minatar.gym import register_envs

        if "MinAtar/Breakout-v1" not in gymnasium.registry:
            register_envs()
        envs = make_vec_env(f"MinAtar/{game_name}-v1", count, seed=seed, wrapper_class=Padded)
    else:
        envs = make_vec_env(game_name, count, seed=seed)
    policy = {
        "features_extractor_class": Extractor,
        "net_arch": [],
        "optimizer_kwargs": {"eps": settings.adam_eps},
        "normalize_images": suite == "atari",
    }
    agent = sb3.PPO(
        "MlpPolicy" if suite == "gymnasium" else "CnnPolicy",
        envs, n_steps=settings.rollout, batch_size=settings.batch // settings.minibatches, n_epochs=settings.epochs,
        learning_rate=lambda left: settings.lr * left, gae_lambda=settings.gae_lambda, ent_coef=settings.entropy,
        vf_coef=settings.value_weight / 2, max_grad_norm=settings.max_grad_norm, policy_kwargs=policy, seed=seed, device="cpu",
    )  # fmt: skip
    for module in agent.policy.features_extractor.modules():  # PyTorch's initial weights, as ours
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()
    finished = list[float]()

    class Returns(BaseCallback):
        def _on_step(self) -> bool:
            finished.extend(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
            return True

    total, callback = agent._setup_learn(settings.updates * settings.batch, Returns())

    def iteration() -> list[float]:
        finished.clear()
        agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, settings.rollout)
        agent._update_current_progress_remaining(agent.num_timesteps, total)
        agent.train()
        return list(finished)

    from stable_baselines3.common.logger import Logger

    agent.set_logger(Logger(folder=None, output_formats=[]))
    return iteration


def seconds(do: Callable[[], object]) -> float:
    start = time.process_time()
    do()
    return time.process_time() - start


def speed(names: list[str], rounds: int) -> None:
    for name in names:
        settings = SETTINGS[GAMES[name][2]]
        pair = ours(name, settings, 0), theirs(name, settings, 0)
        for one in pair:
            one()
        times = [[seconds(one) for one in pair] for _ in range(rounds)]
        mine, other = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{name}: {settings.batch / mine:,.0f} steps per CPU second, Stable-Baselines3 {settings.batch / other:,.0f}: "
            f"{other / mine:.2f} ×",
            flush=True,
        )


def guard_cost(rounds: int) -> None:
    """A whole second game under each method beside fine-tuning."""
    settings = PPO(steps=8 * 2048, environments=16, rollout=128, epochs=4, minibatches=4)
    games = [find_game("minatar", name) for name in ("Breakout", "Asterix")]
    cost: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, guard in (
            ("finetune", None),
            ("ewc", afec.EWC(1000.0)),
            ("ewc+afec", afec.EWC(1000.0) + afec.AFEC(1.0)),
            ("ewc+afec, interleaved", afec.EWC(1000.0) + afec.AFEC(1.0, schedule="interleaved", fisher="batched")),
        ):
            torch.manual_seed(0)
            net = GameNet(make_backbone("minatar"), [game.actions for game in games])
            learner = GameLearner(net, games, guard, settings, Measuring(evaluations=0, importance_steps=2048), 0)
            learner.learn(0)
            cost.setdefault(name, []).append(seconds(lambda learner=learner: learner.learn(1)))  # type: ignore[misc]
    base = statistics.median(cost["finetune"])
    for name, found in cost.items():
        print(f"a second game of MinAtar, {name}: {statistics.median(found) / base:.2f} × fine-tuning", flush=True)


def curves(file: Path, names: list[str], seeds: int, steps: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(["game", "agent", "seed", "steps", "return", "episodes"])
        for name in names:
            settings = SETTINGS[GAMES[name][2]]
            settings = PPO(**{**vars(settings), "steps": steps})
            for seed in range(seeds):
                for agent, make in (("afec", ours), ("stable-baselines3", theirs)):
                    iteration, found, row = make(name, settings, seed), list[float](), list[object]()
                    for update in range(1, settings.updates + 1):
                        found += iteration()
                        if update % max(1, settings.updates // 20) == 0 and found:
                            row = [name, agent, seed, update * settings.batch, f"{np.mean(found):.3f}", len(found)]
                            writer.writerow(row)
                            found = []
                    opened.flush()
                    print(*row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--games", nargs="*", choices=list(GAMES), help="which games; by default those of the docstring"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--curves", type=Path, help="learn, and write returns into this CSV file")
    parser.add_argument("--seeds", type=int, default=3, help="of --curves")
    parser.add_argument("--steps", type=int, default=50_000, help="of --curves")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.curves:
        curves(options.curves, options.games or ["CartPole", "Acrobot", "Breakout"], options.seeds, options.steps)
        return
    speed(options.games or ["CartPole", "Breakout", "Boxing"], options.rounds)
    guard_cost(options.rounds)


if __name__ == "__main__":
    main()
