"""Learning game after game: PPO inside the block of a guard, or as the training of a strategy.

The pull is the guard's and enters in `optimizer.step()`; what mattered for a game is measured on rollouts of the policy that
has learned it. With AFEC the new game is learned alone first, by a PPO of its own from the initial weights (`sequential`); or
θ_e learns beside θ, update by update, from the rollouts of the main policy or from its own (`interleaved`).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from afec.guard import Guard, GuardedTask
from afec.learner import Stopwatch, TaskRecord
from afec.learner.task_run import accepted
from afec.methods import AFEC
from afec.nets import HiddenLayers
from afec.randomness import seed_from
from afec.rl.environments import Game
from afec.rl.evaluation import episodes_of
from afec.rl.net import GameNet
from afec.rl.player import Player, as_tensor
from afec.rl.ppo import PPO, Steps, collect, improve, new_adam, ppo_terms
from afec.stopping import NEVER, Stop, StoppedError
from afec.strategy import AfterHook, LearningContext, Strategy, Training, as_strategy

__all__ = ["GameLearner", "Measuring", "OnUpdate", "Update"]


@dataclass(frozen=True)
class Measuring:
    """What is measured beside the learning itself."""

    importance_steps: int = 4096
    """From how many steps of the finished policy the importance of its weights is measured; so is F_e."""
    mas_output: Literal["policy", "features"] = "policy"
    """What MAS takes for the output: the logits of the actions, or the features under the heads (the released code)."""
    theta_e_rollouts: Literal["main", "own"] = "main"
    """Under AFEC's schedule `interleaved`: whose rollouts θ_e learns from, the main policy's (the released code) or its own."""
    theta_e_decay: bool = True
    """Whether the learning rate of θ_e falls under `interleaved` as that of θ does; in the released code it does not."""
    episodes: int = 30
    """How many episodes the score of a game is the mean of."""
    validation_episodes: int = 0
    """The same for validation, with other seeds: what a tuning chooses by."""
    greedy: bool = True
    """Whether scores are of the likeliest action in every state, or of actions drawn from the policy."""
    evaluations: int = 30
    """How many times all games so far are evaluated while one is learned; 0: never."""
    evaluation_episodes: int = 10
    """How many episodes each of these evaluations has."""

    def __post_init__(self) -> None:
        for name in ("importance_steps", "episodes", "evaluation_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        for name in ("validation_episodes", "evaluations"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0; got {getattr(self, name)}")
        words = {"mas_output": ("policy", "features"), "theta_e_rollouts": ("main", "own")}
        for name, valid in words.items():
            if getattr(self, name) not in valid:
                raise ValueError(f"{name} must be {' or '.join(map(repr, valid))}; got {getattr(self, name)!r}")

    def due(self, update: int, updates: int) -> bool:
        """Whether to evaluate after this update, counted from 1: evenly spread, and after the last one."""
        return (
            self.evaluations > 0 and update * self.evaluations // updates > (update - 1) * self.evaluations // updates
        )


@dataclass(frozen=True)
class Update:
    """Where the learner is, after an update."""

    game: int
    """Counted from 0."""
    phase: str
    """`train`, or `theta_e`."""
    number: int
    """Counted from 1."""
    values: Mapping[str, float]


OnUpdate = Callable[[Update], None]


class _Loop:
    """PPO on one game with one net, update by update: its environments, its optimiser and where it is."""

    def __init__(self, game: Game, settings: PPO, optimizer: Optimizer, seed: int) -> None:
        self.settings, self.optimizer, self.seed, self.update = settings, optimizer, seed, 0
        self.player = Player(game, settings.environments, seed_from(seed, "environments"))

    def generator(self, what: str) -> torch.Generator:
        """Of the draws of the present update."""
        return torch.Generator().manual_seed(seed_from(self.seed, self.update, what))

    def collect(self, net: GameNet, number: int) -> Steps:
        """A rollout of the net's policy."""
        found = collect(net, number, self.player, self.settings.rollout, self.generator("actions"))
        return found.steps(self.settings)

    def improve(
        self,
        net: GameNet,
        number: int,
        steps: Steps,
        *,
        decay: bool = True,
        after_step: AfterHook | None = None,
        after_pass: AfterHook | None = None,
    ) -> dict[str, float]:
        """Learn from a rollout, at the learning rate of the update; the hooks are told it."""
        lr = self.settings.lr_at(self.update) if decay else self.settings.lr
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        hooks = (None if hook is None else partial(hook, lr) for hook in (after_step, after_pass))
        found = improve(net, number, self.optimizer, steps, self.settings, self.generator("minibatches"), *hooks)
        self.update += 1
        return {"lr": lr, **found}

    def state_dict(self) -> dict[str, Any]:
        state = copy.deepcopy(self.optimizer.state_dict())
        return {"update": self.update, "optimizer": state, "player": self.player.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.update = state["update"]
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.player.load_state_dict(state["player"])


class GameLearner:
    """A method, or none, over games, one after the other.

    Args:
        net: with a head for each game.
        games: in the order in which they are learned.
        method: a guard, or a strategy with `learns_games`; None is fine-tuning.
        settings: of PPO.
        measuring: importance and evaluation.
        seed: of everything that is drawn.
        on_update: called after every update; the state is complete then.
        stop: looked at right after it.
    """

    def __init__(
        self,
        net: GameNet,
        games: Sequence[Game],
        method: Strategy | Guard | None,
        settings: PPO,
        measuring: Measuring,
        seed: int,
        on_update: OnUpdate | None = None,
        stop: Stop = NEVER,
    ) -> None:
        self.net, self.games, self.settings, self.measuring = net, list(games), settings, measuring
        self.strategy = as_strategy(method)
        self.strategy.check(net)
        self.guard = self.strategy.guard
        self.seed, self.on_update, self.stop = seed, on_update, stop
        self.number = 0
        """The game that is being learned, or the next."""
        self.curve = list[tuple[int, int, int, float]]()
        """While which game, after how many updates of it, which game had which mean return; counted from 1."""
        self.dormant = list[dict[str, tuple[int, int]]]()
        """After each game: of each hidden layer, how many units no state of the game makes fire, and how many there are."""
        self.optimizer_state: dict[str, Any] | None = None
        self._new_game()

    def _new_game(self) -> None:
        self.loop: _Loop | None = None  # of θ
        self.beside: _Loop | None = None  # of θ_e
        self.entry: dict[str, Any] | None = None  # θ and its optimiser, while θ_e has their place
        self.task: GuardedTask | None = None
        self.resumed: dict[str, Any] = {}  # what an earlier process left of the present game
        self.rollout: Steps | None = None  # what θ_e learns from beside θ
        self.spent = Counter[str]()

    # -- learning --------------------------------------------------------------------------------------------------

    def learn(self, number: int) -> TaskRecord:
        """Learn game `number`, counted from 0, from where the state says."""
        if number != self.number:
            raise ValueError(f"the next game is number {self.number}; got {number}")
        watch, game = Stopwatch(), self.games[number]
        self.spent = Counter(self.resumed.get("spent", {}))
        self.loop = self._loop("train")
        if self.optimizer_state is not None and self.settings.carry_optimizer:
            self.loop.optimizer.load_state_dict(copy.deepcopy(self.optimizer_state))
        if "train" in self.resumed:
            self.loop.load_state_dict(self.resumed["train"])
        try:
            with watch.phase("fisher"):
                context = self._context()
                for training in self._trainings(context):
                    with self._guard_block(watch):
                        self._train(watch, training)
                        self._count_dormant()
                self.strategy.state = context.state
            self.optimizer_state = copy.deepcopy(self.loop.optimizer.state_dict())
        finally:
            for loop in (self.loop, self.beside):
                if loop is not None:
                    loop.player.close()
        updates, alone = self.spent["train"], self.spent["theta_e"]
        samples = (updates + alone) * self.settings.batch * self.settings.epochs + self.spent["importance"]
        record = TaskRecord(game.name, updates, updates, alone, samples, dict(watch.wall), dict(watch.cpu))
        self.number += 1
        self._new_game()
        return record

    def _context(self) -> LearningContext:
        """The game as a strategy sees it."""
        number, loop = self.number, self.loop
        assert loop is not None

        def inputs() -> Iterator[Tensor]:
            for steps in self._rollouts():
                self.spent["importance"] += len(steps.actions)
                yield self._prepared(steps.observations)

        return LearningContext(
            number=number,
            net=self.net,
            loss=self._loss,
            state=self.strategy.state,
            seed=partial(seed_from, "games", self.seed, number),
            example=lambda: self._prepared(as_tensor(loop.player.observations[:2])),
            inputs=inputs,
        )

    def _trainings(self, context: Any) -> Iterator[Training]:
        return self.strategy.trainings(context)  # one with `learns_games` asks for no more than a LearningContext has

    def _prepared(self, observations: Tensor) -> Tensor:
        return self.net.prepared(observations.to(next(self.net.parameters()).device))

    @contextmanager
    def _guard_block(self, watch: Stopwatch) -> Iterator[None]:
        """The block of the guard around the training of a game, where there is one: expansion, pull, consolidation."""
        guard = self.guard
        if guard is None:
            yield
            return
        assert self.loop is not None
        beside = self._expands(guard, "interleaved")
        if beside is not None:
            beside.expand = self._improve_beside  # one update of θ_e at each `task.epoch()`
        self.entry = {"net": _clones(self.net.state_dict()), "optimizer": self.loop.state_dict()}
        features = self.measuring.mas_output == "features" and guard.method.startswith("mas")
        with guard.learning(
            self.net,
            self.loop.optimizer,
            self._rollouts,
            self._loss,
            predict=self._features if features else self._logits,
            likelihood=None if features else "categorical",
            train=lambda: self._learn_alone(watch),
            progress=False,
            seed=seed_from("games", self.seed),
        ) as self.task:
            self.entry = None
            yield
        self.spent["importance"] += self.task.samples_measured

    @staticmethod
    def _expands(guard: Guard, schedule: str) -> AFEC | None:
        return next((term for term in guard.terms if isinstance(term, AFEC) and term.schedule == schedule), None)

    def _loop(self, phase: str) -> _Loop:
        settings = self.settings
        return _Loop(
            self.games[self.number], settings, new_adam(self.net, settings), seed_from(self.seed, self.number, phase)
        )

    def _train(self, watch: Stopwatch, training: Training) -> None:
        """θ, under the guard's pull, with what the strategy does after a step and after each pass over a rollout."""
        loop, number, interleaved = self.loop, self.number, False
        assert loop is not None
        if self.guard is not None and self._expands(self.guard, "interleaved") and number > 0:
            interleaved = True
            self.beside = self._loop("beside")
            if "beside" in self.resumed:
                self.beside.load_state_dict(self.resumed["beside"])
        after_step, after_pass = training.after_step, training.after_epoch
        if self.task is not None:
            after_step, after_pass = accepted(after_step, self.task), accepted(after_pass, self.task)
        while loop.update < self.settings.updates:
            with watch.phase("train"):
                steps = loop.collect(self.net, number)
            if interleaved:
                assert self.task is not None
                with watch.phase("expand"):
                    self.rollout = steps
                    self.task.epoch(loop.optimizer)
                    self.rollout = None
            with watch.phase("train"):
                values = loop.improve(self.net, number, steps, after_step=after_step, after_pass=after_pass)
            self.spent["train"] += 1
            if self.measuring.due(loop.update, self.settings.updates):
                with watch.phase("evaluate"):
                    values |= self._evaluate(loop.update)
            self._tell("train", loop, values)

    def _learn_alone(self, watch: Stopwatch) -> None:
        """θ_e by its own rollouts, before θ: the guard has lent the net, and given it its weights to start from."""
        self.beside = self._loop("theta_e")
        if "theta_e" in self.resumed:
            self.beside.load_state_dict(self.resumed["theta_e"])
            self.net.load_state_dict(self.resumed["theta_e_weights"])
        with watch.phase("expand"):
            while self.beside.update < self.settings.updates:
                steps = self.beside.collect(self.net, self.number)
                values = self.beside.improve(self.net, self.number, steps)
                self.spent["theta_e"] += 1
                self._tell("theta_e", self.beside, values)
        self.beside.player.close()
        self.beside = None

    def _improve_beside(self) -> None:
        """One update of θ_e, whose weights the net has now, under the schedule `interleaved`."""
        assert self.beside is not None
        if self.measuring.theta_e_rollouts == "own":
            self.rollout = self.beside.collect(self.net, self.number)
        assert self.rollout is not None
        self.beside.improve(self.net, self.number, self.rollout, decay=self.measuring.theta_e_decay)
        self.spent["theta_e"] += 1

    def _tell(self, phase: str, loop: _Loop, values: dict[str, float]) -> None:
        returns = loop.player.returns()
        if returns:
            values = {"return": sum(returns) / len(returns), **values}
        values = {**values, "steps": loop.update * self.settings.batch}
        if self.on_update:
            self.on_update(Update(self.number, phase, loop.update, values))
        if self.stop.asked:
            raise StoppedError

    # -- what the guard measures on --------------------------------------------------------------------------------

    def _rollouts(self) -> Iterator[Steps]:
        """Steps of the present policy, in minibatches: the same ones however often they are asked for.

        Their advantages are normalised here, all together, so that the loss is a mean of the losses of its samples.
        """
        size = max(1, self.settings.batch // self.settings.minibatches)
        if self.rollout is not None:
            yield from _cut(self._normalised(self.rollout), size)
            return
        phase = "theta_e" if self.entry is not None else "train"
        seed = seed_from(self.seed, self.number, "importance", phase)
        count = self.settings.environments
        player = Player(self.games[self.number], count, seed)
        generator = torch.Generator().manual_seed(seed)
        try:
            for _ in range(-(-self.measuring.importance_steps // self.settings.batch)):
                steps = collect(self.net, self.number, player, self.settings.rollout, generator).steps(self.settings)
                yield from _cut(self._normalised(steps), size)
        finally:
            player.close()

    def _normalised(self, steps: Steps) -> Steps:
        good = steps.advantages
        if self.settings.normalise_advantages and len(good) > 1:
            good = (good - good.mean()) / (good.std() + 1e-8)
        return steps._replace(advantages=good)

    def _loss(self, model: nn.Module, batch: Steps) -> Tensor:
        logits, values = self.net.policy(batch.observations, self.number)
        return ppo_terms(logits, values, batch, self.settings, normalise=False).loss

    def _logits(self, model: nn.Module, batch: Steps) -> Tensor:
        return self.net.policy(batch.observations, self.number)[0]

    def _features(self, model: nn.Module, batch: Steps) -> Tensor:
        return self.net.features(batch.observations, self.number)

    # -- evaluation ------------------------------------------------------------------------------------------------

    def score(self, number: int, episodes: int, split: str) -> float:
        """The mean return of a game now."""
        seed = seed_from(self.seed, number, "evaluate", split) % 2**31
        greedy = self.measuring.greedy
        found = episodes_of(self.net, number, self.games[number], episodes, seed, greedy=greedy)
        return sum(found) / len(found)

    def _evaluate(self, update: int) -> dict[str, float]:
        found = {}
        for seen in range(self.number + 1):
            value = self.score(seen, self.measuring.evaluation_episodes, "curve")
            self.curve.append((self.number + 1, update, seen + 1, value))
            found[f"evaluation.{seen + 1}"] = value
        return found

    @torch.no_grad()
    def _count_dormant(self) -> None:
        """Which units of each hidden layer no state of a rollout makes fire."""
        largest: dict[str, Tensor] = {}
        for batch in self._rollouts():
            layers = HiddenLayers(self.net, lambda batch=batch: self._logits(self.net, batch))  # type: ignore[misc]

            def see(layer: Any, active: Tensor) -> None:
                size = active.abs().flatten(2).amax(dim=(0, 2))
                largest[layer.name] = torch.maximum(size, largest.get(layer.name, torch.zeros_like(size)))

            with layers.watched(layers.layers, see):
                self._logits(self.net, batch)
        self.dormant.append({name: (int((size == 0).sum()), len(size)) for name, size in largest.items()})

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that a fresh process needs to go on bit for bit; complete whenever `on_update` is called."""
        state: dict[str, Any] = {
            "number": self.number,
            "net": self.net.state_dict(),
            "optimizer": self.optimizer_state,
            "method": self.strategy.state_dict(),
            "curve": [list(point) for point in self.curve],
            "dormant": [{name: list(counts) for name, counts in one.items()} for one in self.dormant],
            "game": dict(self.resumed),
        }
        if self.loop is None:
            return state
        state["game"] = {"spent": dict(self.spent)}
        if self.entry is not None:  # θ_e has the place of θ
            state["net"], state["game"]["train"] = self.entry["net"], self.entry["optimizer"]
            if self.beside is not None:
                state["game"] |= {"theta_e": self.beside.state_dict(), "theta_e_weights": dict(self.net.state_dict())}
            return state
        state["game"]["train"] = self.loop.state_dict()
        if self.task is not None:
            state["game"]["spent"]["importance"] = self.spent["importance"] + self.task.samples_measured
        if self.beside is not None:
            state["game"]["beside"] = self.beside.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        if not 0 <= state["number"] <= len(self.games):
            raise ValueError(f"the state is of game {state['number']} of {len(self.games)}")
        self.net.load_state_dict(state["net"])
        self.strategy.load_state_dict(state["method"])
        self._new_game()
        self.number, self.optimizer_state = state["number"], state["optimizer"]
        self.curve = [tuple(point) for point in state["curve"]]
        self.dormant = [{name: tuple(counts) for name, counts in one.items()} for one in state["dormant"]]
        self.resumed = dict(state["game"])


def _clones(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def _cut(steps: Steps, size: int) -> Iterator[Steps]:
    return map(steps.at, torch.split(torch.arange(len(steps.actions)), size))
