"""Grad-CAM of the latest task after the whole stream: where each method looks, on the same images (the paper's figure).

From the weights in the run directories and the data that the stream is made of; `pip install "afec[explain]"` brings captum.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afec.learner import Learner
from afec.learner.tasks import BatchLoss
from afec.streams import Stream, Task

__all__ = ["Look", "Scene", "captum_is_there", "last_convolution", "look", "scene"]

Image = NDArray[np.uint8]
SIZE = 96
BLEND = 0.5


@dataclass(frozen=True)
class Look:
    """What one method sees in one image."""

    heat: Image
    """(96, 96, 3): the image under its heat map."""
    predicted: str
    """The name of the class."""
    correct: bool


@dataclass(frozen=True)
class Scene:
    """One image of the latest task, and its class."""

    image: Image
    true: int


def captum_is_there() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("captum") is not None


def last_convolution(backbone: nn.Module) -> nn.Module | None:
    """The deepest layer that still has places; the 1 × 1 of a residual net's shortcut stands last, but beside it."""
    every = [module for module in backbone.modules() if isinstance(module, nn.Conv2d)]
    found = [module for module in every if module.kernel_size != (1, 1)] or every
    return found[-1] if found else None


def scene(stream: Stream, row: int) -> Scene:
    """A test image of the last task, by its row: the first ones, so nobody has chosen them."""
    task = stream.tasks[-1]
    return Scene(_pixels(_seen(task, [row])[0]), int(task.test.targets[row]))


def look(learner: Learner, stream: Stream, rows: Sequence[int]) -> list[Look]:
    """Grad-CAM of the class that the learner predicts, in the last convolution of its net."""
    from captum.attr import LayerAttribution, LayerGradCam

    net, number, task = learner.net, len(stream.tasks) - 1, stream.tasks[-1]
    layer = last_convolution(net.backbone)
    if layer is None or task.loss != "cross_entropy":
        raise ValueError("Grad-CAM needs a classification by a net with convolutions")
    loss = BatchLoss.of(number, task, learner.machine)
    inputs, prepared = loss.prepared(task.test.inputs[list(rows)]), replace(loss, prepare=None)

    def outputs(batch: Tensor) -> Tensor:
        return learner.strategy.outputs(net, prepared, (batch,))

    mode = net.training
    net.eval()
    try:
        with torch.no_grad():
            predicted = outputs(inputs).argmax(1)
        heat = LayerGradCam(outputs, layer).attribute(inputs, target=predicted, relu_attributions=True).detach()
        heat = LayerAttribution.interpolate(heat, (SIZE, SIZE), "bilinear")[:, 0]
    finally:
        net.train(mode)
    names = _output_names(stream, net.scenario)
    targets = net.output_targets(number, task.test.targets[list(rows)])
    return [
        Look(_blend(_pixels(image), one), names[int(guess)], int(guess) == int(true))
        for image, one, guess, true in zip(_seen(task, rows), heat, predicted, targets, strict=True)
    ]


def _output_names(stream: Stream, scenario: str) -> list[str]:
    """What the outputs stand for: the classes of the last task, or, with one classifier for all, of every task."""
    tasks = stream.tasks if scenario == "class" else stream.tasks[-1:]
    return [task.class_name(number) for task in tasks for number in range(task.outputs)]


def _seen(task: Task, rows: Sequence[int]) -> Tensor:
    """Test images as they are kept; of those that lie in a file, and are known by their numbers, what a net is given."""
    kept = task.test.inputs[list(rows)]
    return task.prepare(kept) if kept.dim() == 1 and task.prepare is not None else kept


def _pixels(image: Tensor) -> Image:
    """The image, 96 pixels wide."""
    values = image.float() if image.dim() == 3 else image.float()[None]
    if image.dtype != torch.uint8:
        low, high = values.min(), values.max()
        values = 255 * (values - low) / (high - low).clamp(min=1e-9)
    values = values.expand(3, -1, -1) if len(values) == 1 else values[:3]
    large = nn.functional.interpolate(values[None], (SIZE, SIZE), mode="nearest")[0]
    return large.permute(1, 2, 0).round().clamp(0, 255).numpy().astype(np.uint8)


def _blend(image: Image, heat: Tensor) -> Image:
    from matplotlib import colormaps  # half a second to import, and most commands draw nothing

    strength = (heat / heat.max().clamp(min=1e-9)).numpy()
    colours = colormaps["inferno"](strength)[..., :3] * 255
    mixed: Image = ((1 - BLEND) * image + BLEND * colours).round().clip(0, 255).astype(np.uint8)
    return mixed
