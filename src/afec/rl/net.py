"""The net of an agent: one backbone for all games, and an actor and a critic for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from afec.nets import MultiHead

__all__ = ["GameNet"]


class GameNet(MultiHead):
    """A backbone shared by all games; the head of a game has a row for each action and one for the value of a state.

    Actor and critic are two layers that read the same features, so they are the rows of one: one product in place of two. They
    start orthogonal, the actor at 0.01 (all actions are about equally likely), the critic at 1, and without bias. A guard
    guards the backbone only, as everywhere: a head belongs to one game, and no other game can spoil it.

    Args:
        backbone: features of a batch of observations.
        actions: how many actions each game has.
    """

    def __init__(self, backbone: nn.Module, actions: Sequence[int]) -> None:
        super().__init__(backbone, [number + 1 for number in actions])

    def policy(self, observations: Tensor, game: int) -> tuple[Tensor, Tensor]:
        """The logits of the actions, and the values of the observations, of game number `game`."""
        outputs = self(observations, game)
        return outputs[:, :-1], outputs[:, -1]

    def features(self, x: Tensor, task: int) -> Tensor:
        """The features of observations; bytes are taken as pixels, 0 to 255, and divided by 255."""
        return super().features(self.prepared(x), task)

    @staticmethod
    def prepared(x: Tensor) -> Tensor:
        """Observations as the backbone takes them."""
        if x.dtype == torch.float32:
            return x
        layout = torch.channels_last if x.dim() == 4 else torch.preserve_format
        pixels = x.dtype == torch.uint8
        x = x.to(torch.float32, memory_format=layout)
        return x.div_(255) if pixels else x

    def _new_layer(self, layer: Callable[..., nn.Module], size: int) -> nn.Module:
        made = super()._new_layer(layer, size)
        weight, bias = made.weight, made.bias
        assert isinstance(weight, Tensor)
        assert isinstance(bias, Tensor)
        nn.init.orthogonal_(weight[:-1], 0.01)
        nn.init.orthogonal_(weight[-1:], 1.0)
        nn.init.zeros_(bias)
        return made
