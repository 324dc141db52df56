"""Normalisation and augmentation of images, by hand and as properties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from afec.streams.images import CropFlip, Normalise


def test_normalise_by_hand():
    images = torch.tensor([[[[0, 255]], [[51, 102]]]], dtype=torch.uint8)  # one image, two channels, 1×2 pixels
    found = Normalise(mean=(0.5, 0.2), std=(0.25, 0.1))(images)
    torch.testing.assert_close(found, torch.tensor([[[[-2.0, 2.0]], [[0.0, 2.0]]]]))


def test_normalise_keeps_channels_last():
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8).to(memory_format=torch.channels_last)
    found = Normalise((0.5,) * 3, (0.2,) * 3)(images)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_what_normalise_refuses():
    with pytest.raises(TypeError, match="torch.uint8 from 0 to 255; got torch.float32"):
        Normalise((0.5,), (0.5,))(torch.zeros(1, 1, 2, 2))
    with pytest.raises(ValueError, match="above 0 for each channel"):
        Normalise((0.5,), (0.0,))
    with pytest.raises(ValueError, match="one mean and one standard deviation"):
        Normalise((0.5, 0.5), (0.5,))


def crops(image: torch.Tensor, padding: int) -> list[bytes]:
    """Every crop of the padded image, and its mirror image."""
    padded = F.pad(image, (padding,) * 4)
    height, width = image.shape[1:]
    found = []
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = padded[:, top : top + height, left : left + width]
            found += [crop.contiguous().numpy().tobytes(), crop.flip(2).contiguous().numpy().tobytes()]
    return found


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), padding=st.integers(1, 3), height=st.integers(2, 6), width=st.integers(2, 6))
def test_each_image_becomes_one_of_its_own_crops(seed, padding, height, width):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(1, 256, (5, 3, height, width), dtype=torch.uint8, generator=generator)
    torch.manual_seed(seed)
    found = CropFlip(padding)(images)
    assert found.dtype == torch.uint8
    assert found.shape == images.shape
    for image, changed in zip(images, found, strict=True):
        assert changed.contiguous().numpy().tobytes() in crops(image, padding)


def test_all_crops_and_both_sides_occur_and_images_are_changed_by_themselves():
    image = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
    torch.manual_seed(0)
    found = CropFlip(1)(image.expand(2000, 1, 3, 3))
    kinds = {changed.contiguous().numpy().tobytes() for changed in found}
    assert kinds == set(crops(image[0], 1))
    assert len(kinds) == 18  # nine places, two sides
    middle = crops(image[0], 1)[8]
    share = sum(changed.contiguous().numpy().tobytes() == middle for changed in found) / 2000
    assert 0.03 < share < 0.085  # 1 of 18


def test_the_same_seed_draws_the_same():
    images = torch.randint(256, (8, 3, 5, 5), dtype=torch.uint8)
    torch.manual_seed(3)
    one = CropFlip()(images)
    torch.manual_seed(3)
    assert CropFlip()(images).equal(one)
    assert not CropFlip()(images).equal(one)
