"""An agent at play as moving pictures: a GIF, or an MP4 where ffmpeg is installed.

MinAtar and Atari are shown as the agent sees them; other games as their environments draw themselves.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from afec.rl.environments import Game
from afec.rl.net import GameNet
from afec.rl.player import Player, as_tensor

__all__ = ["KINDS", "played", "write_clip"]

KINDS = (".gif", ".mp4")
SIZE = 320
"""The shorter side of a picture, in pixels."""
COLOURS = np.array(
    [[250, 250, 250], [230, 80, 60], [250, 190, 60], [90, 170, 90], [80, 140, 220], [170, 110, 200], [110, 200, 200],
     [200, 130, 90], [150, 150, 150], [240, 140, 180]], dtype=np.uint8
)  # fmt: skip
"""One for each channel of a MinAtar game."""

Frame = NDArray[np.uint8]


@torch.no_grad()
def played(
    net: GameNet, number: int, game: Game, seed: int, *, greedy: bool = True, most: int = 1000
) -> tuple[list[Frame], float]:
    """One episode of game number `number`, at most so many steps of it: its pictures, and its return."""
    player, generator = Player(game, 1, seed, training=False), torch.Generator().manual_seed(seed)
    frames, total, over = [_frame(game, player)], 0.0, False
    try:
        while not over and len(frames) <= most:
            logits, _ = net.policy(as_tensor(player.observations), number)
            if not greedy:
                logits = logits - torch.empty_like(logits).exponential_(generator=generator).log()
            moved = player.step(logits.argmax(dim=1).numpy())
            total += float(moved.rewards[0])
            over = bool(moved.terminated[0] or moved.truncated[0])
            if not over:
                frames.append(_frame(game, player))
    finally:
        player.close()
    return frames, total


def _frame(game: Game, player: Player) -> Frame:
    seen = player.observations[0]
    if game.suite == "minatar":
        picture = np.zeros((*seen.shape[1:], 3), dtype=np.uint8)
        for channel, colour in zip(seen, COLOURS, strict=True):
            picture[channel] = colour
        return _larger(picture)
    if game.suite == "atari":
        return _larger(np.repeat(seen[-1][..., None], 3, axis=2))
    if len(seen.shape) == 1:
        return _bars(seen)
    raise ValueError(f"the game {game.name} shows {seen.shape}, which is no picture that can be drawn here")


def _larger(picture: Frame) -> Frame:
    times = -(-SIZE // min(picture.shape[:2]))
    return picture.repeat(times, axis=0).repeat(times, axis=1)


def _bars(seen: NDArray[Any]) -> Frame:
    """Flat observations as bars, up for positive numbers: an environment's own pictures would need pygame."""
    picture = np.full((SIZE, SIZE, 3), 20, dtype=np.uint8)
    wide, middle = SIZE // len(seen), SIZE // 2
    for place, value in enumerate(seen):
        high = round(float(np.tanh(value)) * (middle - 4))
        top, bottom = sorted((middle, middle - high))
        picture[top : bottom + 1, place * wide + 4 : (place + 1) * wide - 4] = COLOURS[1 + place % 9]
    return picture


def write_clip(file: Path, frames: Sequence[Frame], per_second: int = 15) -> None:
    """Write the pictures; a ValueError says what is missing."""
    if file.suffix not in KINDS:
        raise ValueError(f"{file}: expected a file name that ends in {' or '.join(KINDS)}")
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".gif":
        images = [Image.fromarray(frame) for frame in frames]
        images[0].save(file, save_all=True, append_images=images[1:], duration=1000 // per_second, loop=0)
        return
    program = shutil.which("ffmpeg")
    if program is None:
        raise ValueError(f"{file}: an MP4 needs the program ffmpeg, which is not installed; write a .gif instead")
    high, wide = frames[0].shape[:2]
    command = [program, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{wide}x{high}"]
    command += [
        "-r",
        str(per_second),
        "-i",
        "-",
        "-pix_fmt",
        "yuv420p",
        "-vf",
        "pad=ceil(iw/2)*2:ceil(ih/2)*2",
        str(file),
    ]
    done = subprocess.run(command, input=b"".join(frame.tobytes() for frame in frames), capture_output=True)
    if done.returncode:
        raise ValueError(f"{file}: ffmpeg could not write it: {done.stderr.decode(errors='replace').strip()}")
