"""PPO beside Stable-Baselines3's, with the same net, environments, settings and steps: `python bench/games.py`.

By default: environment steps per CPU second of whole iterations (rollout and update), turn by turn in one run, on CartPole,
MinAtar's Breakout and Atari's Boxing, the best of several rounds of each; what a game under EWC + AFEC costs beside
fine-tuning; and the pull as a part of a minibatch step. Only ratios of neighbours mean anything on a shared machine.
Stable-Baselines3's environments for Atari need opencv-python-headless.

`--curves FILE`: learn a game with both over several seeds, write the returns of the episodes on the way as CSV, and print the
differences. `--differences FILE ...`: print those of files that were written before, as CSV.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import afec
from afec.nets import make_backbone
from afec.rl.environments import Game, find_game
from afec.rl.learner import GameLearner, Measuring
from afec.rl.net import GameNet
from afec.rl.player import Player
from afec.rl.ppo import PPO, collect, improve, new_adam, ppo_terms

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
    "Acrobot": PPO(environments=16, rollout=256, epochs=4, minibatches=64, lr=1e-3, gae_lambda=0.94, entropy=0.0,
                   value_clip=0.0, value_weight=1.0),
}  # fmt: skip
"""By the kind of net; a game that learns nothing with those has its own."""


def settings_of(name: str) -> PPO:
    return SETTINGS.get(name, SETTINGS[GAMES[name][2]])


def options_of(net: str, game: Game) -> dict[str, Any]:
    inputs = int(np.prod(game.shape))
    return {"mlp": {"inputs": inputs, "activation": "tanh"}, "minatar": {}, "atari": {"width": 0.25}}[net]


def initial_net(name: str, seed: int) -> GameNet:
    """The net that both start from."""
    suite, game_name, kind = GAMES[name]
    game = find_game(suite, game_name)
    torch.manual_seed(seed)
    return GameNet(make_backbone(kind, **options_of(kind, game)), [game.actions])


def ours(name: str, settings: PPO, seed: int) -> Callable[[], list[float]]:
    """One iteration, which returns the returns of finished episodes."""
    game = find_game(*GAMES[name][:2])
    net = initial_net(name, seed).to(memory_format=torch.channels_last)
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


def copy_weights(net: GameNet, policy: Any) -> None:
    """Give their policy the weights of our net."""
    policy.features_extractor.net.load_state_dict(net.backbone.state_dict())
    weight, bias = net.heads[0].weight.data, net.heads[0].bias.data
    for theirs, rows in ((policy.action_net, slice(None, -1)), (policy.value_net, slice(-1, None))):
        theirs.weight.data.copy_(weight[rows])
        theirs.bias.data.copy_(bias[rows])


def theirs(name: str, settings: PPO, seed: int) -> Callable[[], list[float]]:
    """The same by Stable-Baselines3: the same initial weights, seeds of the environments and learning rates."""
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

    count, first = settings.environments, 1000 * seed
    if suite == "atari":
        import ale_py

        gymnasium.register_envs(ale_py)
        envs: Any = VecTransposeImage(VecFrameStack(make_atari_env(f"{game_name}NoFrameskip-v4", count, seed=first), 4))
    elif suite == "minatar":
        from minatar.gym import register_envs

        if "MinAtar/Breakout-v1" not in gymnasium.registry:
            register_envs()
        envs = make_vec_env(f"MinAtar/{game_name}-v1", count, seed=first, wrapper_class=Padded)
    else:
        envs = make_vec_env(game_name, count, seed=first)
    policy = {
        "features_extractor_class": Extractor,
        "net_arch": [],
        "optimizer_kwargs": {"eps": settings.adam_eps},
        "normalize_images": suite == "atari",
    }

    def rate(left: float) -> float:
        """They count an update before its rollout is learned from, so their last one would have rate 0."""
        return settings.lr * (left + 1 / settings.updates) if settings.lr_decay else settings.lr

    agent = sb3.PPO(
        "MlpPolicy" if suite == "gymnasium" else "CnnPolicy",
        envs, n_steps=settings.rollout, batch_size=settings.batch // settings.minibatches, n_epochs=settings.epochs,
        learning_rate=rate, gae_lambda=settings.gae_lambda, ent_coef=settings.entropy,
        vf_coef=settings.value_weight / 2, max_grad_norm=settings.max_grad_norm, policy_kwargs=policy, seed=seed, device="cpu",
    )  # fmt: skip
    copy_weights(initial_net(name, seed), agent.policy)
    agent.env.seed(
        first
    )  # the agent has seeded them with its own seed, so that those of neighbouring seeds would overlap
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
        settings = settings_of(name)
        pair = ours(name, settings, 0), theirs(name, settings, 0)
        for one in pair:
            one()
        times = [[seconds(one) for one in pair] for _ in range(rounds)]
        mine, other = (min(column) for column in zip(*times, strict=True))
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
    base = min(cost["finetune"])
    for name, found in cost.items():
        print(f"a second game of MinAtar, {name}: {min(found) / base:.2f} × fine-tuning", flush=True)


def pull_cost(rounds: int) -> None:
    """Minibatch steps of MinAtar's net with the pull of EWC + AFEC and without, in turns."""
    settings, games = settings_of("Breakout"), [find_game("minatar", name) for name in ("Breakout", "Asterix")]
    torch.manual_seed(0)
    plain, guarded = (
        GameNet(make_backbone("minatar"), [game.actions for game in games]).to(memory_format=torch.channels_last)
        for _ in range(2)
    )
    player, generator = Player(games[0], settings.environments, 0), torch.Generator().manual_seed(0)
    steps = collect(plain, 0, player, settings.rollout, generator).steps(settings)
    once = replace(settings, epochs=1)
    optimizers = {net: new_adam(net, settings) for net in (plain, guarded)}
    guard, inside = afec.EWC(1.0) + afec.AFEC(0.01), contextlib.ExitStack()

    def block() -> contextlib.AbstractContextManager[object]:
        return guard.learning(
            guarded, optimizers[guarded], lambda: iter([steps]),
            lambda model, batch: ppo_terms(*guarded.policy(batch.observations, 0), batch, settings, normalise=False).loss,
            predict=lambda model, batch: guarded.policy(batch.observations, 0)[0], likelihood="categorical",
            train=lambda: improve(guarded, 0, optimizers[guarded], steps, once, generator), progress=False,
        )  # fmt: skip

    with block():
        improve(guarded, 0, optimizers[guarded], steps, once, generator)
    with inside:
        inside.enter_context(block())
        times: dict[GameNet, list[float]] = {plain: [], guarded: []}
        for _ in range(10 * rounds):
            for net, found in times.items():
                found.append(seconds(lambda net=net: improve(net, 0, optimizers[net], steps, once, generator)))  # type: ignore[misc]
    free, held = (min(found) for found in times.values())
    print(
        f"pull of EWC + AFEC, MinAtar's net, minibatches of {settings.batch // settings.minibatches}: "
        f"{100 * (held / free - 1):.1f} % of a step of {1e3 * free / settings.minibatches:.1f} ms",
        flush=True,
    )


def curves(file: Path, names: list[str], seeds: range, steps: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(["game", "agent", "seed", "steps", "return", "episodes"])
        for name in names:
            settings = settings_of(name)
            settings = PPO(**{**vars(settings), "steps": steps})
            for seed in seeds:
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


def differences(files: list[Path]) -> None:
    """Ours less theirs over the seeds: the mean return of the episodes that ended in all steps, and in the last quarter.

    Seeds share initial weights and seeds of environments, so there is a paired interval (Student's t) beside Welch's.
    """
    writer = csv.writer(sys.stdout, lineterminator="\n")
    numbers = ("afec", "stable-baselines3", "difference", "paired_low", "paired_high", "welch_low", "welch_high")
    writer.writerow(["game", "steps", "seeds", "episodes_of", *numbers])
    rows = [row for file in files for row in csv.DictReader(file.read_text().splitlines())]
    for game in dict.fromkeys(row["game"] for row in rows):
        last = max(int(row["steps"]) for row in rows if row["game"] == game)
        for part, begin in (("all steps", 0.0), ("last quarter", 0.75 * last)):
            sums: dict[str, dict[int, list[float]]] = {}
            for row in rows:
                if row["game"] == game and int(row["steps"]) > begin:
                    both = sums.setdefault(row["agent"], {}).setdefault(int(row["seed"]), [0.0, 0.0])
                    both[0] += float(row["return"]) * int(row["episodes"])
                    both[1] += int(row["episodes"])
            means = {agent: [total / count for _, (total, count) in sorted(of.items())] for agent, of in sums.items()}
            mine, other = (np.array(means[agent]) for agent in numbers[:2])
            paired, welch = (
                test.confidence_interval(0.95)
                for test in (stats.ttest_rel(mine, other), stats.ttest_ind(mine, other, equal_var=False))
            )
            found = (mine.mean(), other.mean(), (mine - other).mean(), *paired, *welch)
            writer.writerow([game, last, len(mine), part, *(f"{value:.2f}" for value in found)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--games", nargs="*", choices=list(GAMES), help="which games; by default those of the docstring"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--curves", type=Path, help="learn, and write returns into this CSV file")
    parser.add_argument("--seeds", type=int, default=3, help="of --curves")
    parser.add_argument("--first-seed", type=int, default=0, help="of --curves")
    parser.add_argument("--steps", type=int, default=50_000, help="of --curves")
    parser.add_argument("--differences", type=Path, nargs="+", help="files of --curves, to print the differences of")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.curves:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        curves(options.curves, options.games or ["CartPole", "Acrobot", "Breakout"], seeds, options.steps)
    if files := options.differences or ([options.curves] if options.curves else []):
        differences(files)
        return
    print(
        "goals: a whole iteration at least 1.3 × Stable-Baselines3's steps a second; EWC + AFEC at most 2.1 × fine-tuning; "
        "the pull at most 10 % of a step"
    )
    speed(options.games or ["CartPole", "Breakout", "Boxing"], options.rounds)
    guard_cost(options.rounds)
    pull_cost(options.rounds)


if __name__ == "__main__":
    main()
