"""Random and central crops of large images: against a slow reference, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from afec.data.cache import open_images
from afec.streams.images import Normalise
from afec.streams.photographs import CentreCrop, RandomResizedCrop, order_of_seed, stored_short

COLOURS = Normalise((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    draws = np.random.default_rng(0)
    for k, (high, wide) in enumerate([(40, 52), (52, 40), (33, 33), (40, 40), (8, 12)]):
        pixels = draws.integers(0, 256, (high, wide, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{k}.png")
    return open_images("photos", sorted(folder.iterdir()), folder, 99, folder.parent)


def along(pixels, count):
    """Scale rows of numbers to `count` by a triangle as wide as a new pixel, or as an old one where these are wider."""
    old = len(pixels)
    step = old / count
    reach = max(step, 1.0)
    result = []
    for place in range(count):
        centre = (place + 0.5) * step
        weights = [max(0.0, 1 - abs(k + 0.5 - centre) / reach) for k in range(old)]
        result.append(sum(w * row for w, row in zip(weights, pixels, strict=True)) / sum(weights))
    return np.stack(result)


def by_hand(pixels, height, width):
    """(height, width, 3) → another size, slowly, in floats."""
    rows = along(pixels.astype(float), height)
    return along(rows.transpose(1, 0, 2), width).transpose(1, 0, 2)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("size", [16, 24, 60])
def test_crops_are_those_of_a_slow_reference(images, number, size):
    crop = RandomResizedCrop(images, size)
    torch.manual_seed(number)
    found = crop(torch.full((4,), number))
    torch.manual_seed(number)
    boxes = crop.boxes(images.heights[[number] * 4], images.widths[[number] * 4])
    mirrored = torch.rand(4) < 0.5
    for one, (top, left, high, wide), flip in zip(found, boxes.tolist(), mirrored.tolist(), strict=True):
        expected = by_hand(images[number].numpy()[top : top + high, left : left + wide], size, size)
        expected = expected[:, ::-1] if flip else expected
        assert np.abs(one.permute(1, 2, 0).numpy() - expected).max() <= 1.5  # bytes, rounded after each direction
    assert found.shape == (4, 3, size, size)
    assert found.dtype == torch.uint8


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=8),
    st.integers(0, 2**31),
)
def test_a_random_part_is_inside_and_of_an_allowed_shape(images, sizes, seed):
    heights, widths = (torch.tensor(side) for side in zip(*sizes, strict=True))
    torch.manual_seed(seed)
    crop = RandomResizedCrop(images, 16)
    boxes = crop.boxes(heights, widths)
    middle = crop._middle(heights, widths)
    for (high, wide), box, other in zip(sizes, boxes.tolist(), middle.tolist(), strict=True):
        top, left, h, w = box
        assert 0 <= top <= top + h <= high
        assert 0 <= left <= left + w <= wide
        assert h > 0 < w
        if box != other:
            # Sides are whole pixels: half of one up or down.
            assert (h - 0.5) * (w - 0.5) <= high * wide
            assert (h + 0.5) * (w + 0.5) >= 0.08 * high * wide
            assert (w + 0.5) / (h - 0.5) >= 3 / 4
            assert (w - 0.5) / (h + 0.5) <= 4 / 3


def test_where_no_draw_fits_the_middle_is_taken(images):
    crop = RandomResizedCrop(images, 16, area=(1.0, 1.0))  # the whole area at another ratio fits no square
    boxes = crop.boxes(torch.tensor([30, 100, 12]), torch.tensor([90, 30, 12]))
    assert boxes[0].tolist() == [0, 25, 30, 40]  # 4:3 in the middle of 90 columns
    assert boxes[1].tolist() == [30, 0, 40, 30]  # 3:4
    assert boxes[2].tolist() == [0, 0, 12, 12]


def test_draws_are_spread_as_they_should_be(images):
    torch.manual_seed(0)
    size = torch.full((4000,), 1000)
    top, left, high, wide = RandomResizedCrop(images, 16).boxes(size, size).double().unbind(1)
    areas, ratios = high * wide / 1e6, wide / high
    assert 0.079 < areas.min() < 0.09
    assert areas.max() > 0.97
    # Large parts of an odd ratio do not fit and are drawn again, so the mean is below (0.08 + 1) / 2: of 200,000 draws in a
    # plain loop of floats, one after the other, it was 0.477.
    assert abs(areas.mean() - 0.477) < 0.012
    assert abs(ratios.log().mean()) < 0.01
    assert ratios.min() > 0.749
    assert ratios.max() < 1.335
    free = (1000 - high) > 100
    assert abs((top[free] / (1000 - high[free])).mean() - 0.5) < 0.02
    assert abs((left / (1001 - wide)).mean() - 0.5) < 0.02


def test_every_second_one_is_mirrored(images):
    torch.manual_seed(0)
    crop = RandomResizedCrop(images, 16, area=(1.0, 1.0), ratio=(0.999, 1.001))
    plain = torch.from_numpy(by_hand(images[3].numpy(), 16, 16)).permute(2, 0, 1)
    batch = crop(torch.full((200,), 3)).double()
    straight = [bool((one - plain).abs().max() < 2) for one in batch]
    turned = [bool((one - plain.flip(2)).abs().max() < 2) for one in batch]
    assert all(a != b for a, b in zip(straight, turned, strict=True))
    assert 70 < sum(turned) < 130


def test_crops_are_the_seeds(images):
    crop = RandomResizedCrop(images, 16)
    rows = torch.tensor([0, 1, 2])
    torch.manual_seed(5)
    first = crop(rows)
    torch.manual_seed(5)
    assert torch.equal(first, crop(rows))
    assert not torch.equal(first, crop(rows))


def test_the_middle_by_hand(images):
    # For 7 pixels an image is scaled to a short side of 8: this one (8×12) has it, so it is only cut, at (0, 2).
    assert stored_short(7) == 8
    found = CentreCrop(images, 7, COLOURS)(torch.tensor([4]))
    expected = (images[4][0:7, 2:9].permute(2, 0, 1).double() / 255 - 0.5) / 0.25
    assert torch.allclose(found[0].double(), expected, atol=1e-6)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_middle_is_scaled_as_by_a_slow_reference(images, number):
    size = 14  # to a short side of 16
    high, wide = images[number].shape[:2]
    part = 16 / min(high, wide)
    scaled = by_hand(images[number].numpy(), round(high * part), round(wide * part))
    top, left = (round((side - size) / 2) for side in scaled.shape[:2])
    expected = torch.from_numpy(scaled[top : top + size, left : left + size]).permute(2, 0, 1) / 255
    found = CentreCrop(images, size, COLOURS)(torch.tensor([number]))[0].double() * 0.25 + 0.5
    assert (found - expected).abs().max() * 255 <= 1.5


def test_224_of_256_as_for_imagenet():
    assert stored_short(224) == 256
    assert stored_short(64) == 73


def test_images_of_any_size_are_prepared_as_those_in_the_cache(images):
    prepare = CentreCrop(images, 14, COLOURS)
    own = images[2].permute(2, 0, 1)[None]
    assert torch.equal(prepare(own), prepare(torch.tensor([2])))
    crop = torch.randint(0, 256, (2, 3, 14, 14), dtype=torch.uint8)
    assert torch.equal(prepare(crop), COLOURS(crop))  # as they come out of training


@pytest.mark.parametrize(
    "odd", [torch.zeros(2, 3, 14, 14), torch.zeros(2, 1, 14, 14, dtype=torch.uint8), torch.zeros(3)]
)
def test_other_inputs_are_refused(images, odd):
    with pytest.raises(TypeError, match="expected numbers of images"):
        CentreCrop(images, 14, COLOURS)(odd)


def test_what_they_are_is_in_their_repr(images):
    for one in (RandomResizedCrop(images, 16), CentreCrop(images, 16, COLOURS)):
        assert images.checksum in repr(one)
        assert " at 0x" not in repr(one)


def test_classes_are_placed_as_the_released_code_places_them():
    order = order_of_seed(200, 3)
    places = np.arange(200)
    np.random.RandomState(3).shuffle(places)
    assert [int(places[c]) for c in order] == list(range(200))


def test_ratios_are_even_in_their_logarithm():
    assert math.isclose(math.log(RandomResizedCrop.ratio[0]), -math.log(RandomResizedCrop.ratio[1]))
