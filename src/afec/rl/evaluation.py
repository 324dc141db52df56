"""What a policy is worth: whole episodes of a game, by raw scores."""

from __future__ import annotations

import numpy as np
import torch

from afec.rl.environments import Game
from afec.rl.net import GameNet
from afec.rl.player import Player, as_tensor

__all__ = ["episodes_of"]

MOST_AT_ONCE = 32


@torch.no_grad()
def episodes_of(net: GameNet, number: int, game: Game, count: int, seed: int, *, greedy: bool = True) -> list[float]:
    """The returns of `count` episodes of game number `number`, each the first of a freshly seeded environment.

    Every environment plays one episode: the first to end would otherwise be played again and again, and count too often.
    Lives and clipped rewards are left off. `greedy` takes the likeliest action; else actions are drawn.
    """
    device, found = next(net.parameters()).device, list[float]()
    for begin in range(0, count, MOST_AT_ONCE):
        player = Player(game, min(MOST_AT_ONCE, count - begin), seed + begin, training=False)
        generator = torch.Generator().manual_seed(seed + begin)
        returns, over = np.zeros(player.count), np.zeros(player.count, dtype=np.bool_)
        try:
            while not over.all():
                logits, _ = net.policy(as_tensor(player.observations).to(device), number)
                if not greedy:
                    logits = logits.cpu() - torch.empty(logits.shape).exponential_(generator=generator).log()
                moved = player.step(logits.argmax(dim=1).cpu().numpy())
                returns += np.where(over, 0.0, moved.rewards)
                over |= moved.terminated | moved.truncated
        finally:
            player.close()
        found += returns.tolist()
    return found
