"""The memory of exemplars: herding by hand, how many there is room for, and what is said where there is none."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from afec.strategy import Exemplars, MemoryPolicy, herding


def test_herding_by_hand():
    """Unit vectors at 0°, 90°, 30° and 50°; their mean is (0.627, 0.567), at 42°. Lengths are taken away.

    k = 1: 50° is nearest. k = 2: with 30° the mean is 0.14 away, with 0° 0.27, with 90° 0.44.
    k = 3: with 90° it is 0.23 away, with 0° 0.26. k = 4: 0° is left.
    """
    angles = torch.tensor([0.0, 90.0, 30.0, 50.0]).deg2rad()
    features = torch.stack([angles.cos(), angles.sin()], dim=1) * torch.tensor([[1.0], [5.0], [2.0], [0.1]])
    assert herding(features, 4).tolist() == [3, 2, 1, 0]
    assert herding(features, 2).tolist() == [3, 2]


@given(st.integers(0, 10_000), st.integers(1, 8))
def test_herding_takes_the_row_that_brings_the_mean_nearest(seed, count):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(8, 3, generator=generator)
    chosen = herding(features, count).tolist()
    assert len(set(chosen)) == count
    units = F.normalize(features.double(), dim=1)
    for k in range(1, count + 1):
        before = chosen[: k - 1]
        left = [row for row in range(8) if row not in before]
        away = {row: float((units.mean(0) - units[[*before, row]].mean(0)).norm()) for row in left}
        assert away[chosen[k - 1]] == pytest.approx(min(away.values()), abs=1e-9)


def test_room_of_each_class_or_in_all():
    assert MemoryPolicy(20).quota(100) == 20
    assert MemoryPolicy(20, total=2000).quota(50) == 40
    assert MemoryPolicy(20, total=2000).quota(60) == 33
    assert (str(MemoryPolicy(20)), str(MemoryPolicy(20, 2000))) == ("20 a class", "2000 in all")
    with pytest.raises(
        ValueError, match="a memory of 5 exemplars in all cannot hold one of each of 6 classes; give total=6"
    ):
        MemoryPolicy(20, total=5).quota(6)


def test_each_class_gives_up_what_was_chosen_last():
    memory = Exemplars(torch.arange(6), torch.tensor([0, 0, 0, 1, 1, 1]))
    kept = memory.at(memory.rows_kept(2)).joined(Exemplars(torch.tensor([9]), torch.tensor([2])))
    assert kept.inputs.tolist() == [0, 1, 3, 4, 9]
    assert kept.targets.tolist() == [0, 0, 1, 1, 2]
    assert Exemplars.of(kept.state_dict()).inputs is kept.inputs
    assert Exemplars.of(None).size == Exemplars.of({}).size == 0


def test_2000_images_of_cifar_take_under_10_mb():
    memory = Exemplars(torch.zeros(2000, 3, 32, 32, dtype=torch.uint8), torch.zeros(2000, dtype=torch.int64))
    assert memory.megabytes() == pytest.approx(6.144)
    assert not memory.numbers_only
    assert Exemplars().megabytes() == 0.0


def test_photographs_take_what_they_take_on_disk():
    """Numbers 2, 0 and 2 of images of 4 × 5, 10 × 10 and 200 × 300 pixels: 2 · 180,000 + 60 bytes. The numbers have 24."""
    sizes = 3 * torch.tensor([4, 10, 200]) * torch.tensor([5, 10, 300])
    memory = Exemplars(torch.tensor([2, 0, 2]), torch.tensor([0, 0, 1]))
    assert memory.numbers_only
    assert memory.megabytes(sizes) == pytest.approx(0.36006)
    with pytest.raises(ValueError, match="3 exemplars are numbers of images on disk; give .* megabytes.task.prepare"):
        memory.megabytes()
