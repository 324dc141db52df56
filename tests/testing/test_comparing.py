"""Bit for bit, plain or not, and how much a state holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from afec.testing.compare import difference, not_plain, shape_of


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"a": [1, 2]}, {"a": [1, 2]}, None),
        ({"a": [1, 2]}, {"a": [1, 3]}, "['a'][1] is 2"),
        ({"a": 1}, {"b": 1}, "the keys {'a'} in one and {'b'}"),
        ([1], [1, 1], "1 entries in one and 2"),
        (1, 1.0, "a int in one and a float"),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), None),
        (float("nan"), float("nan"), None),
        (torch.tensor(0.0), torch.tensor(-0.0), "differs by up to 0"),
        (torch.tensor(1), torch.tensor(1.0), "torch.int64"),
        (torch.ones(2), torch.ones(3), "shape (2,)"),
        (torch.tensor([True]), torch.tensor([False]), "differs by up to 1"),
    ],
)
def test_difference_is_bit_for_bit(one, other, found):
    assert (difference(one, other) or "") == "" if found is None else found in difference(one, other)


def test_what_is_plain():
    assert not_plain({"a": [1, 2.0, "b", None, True, torch.ones(1)], 0: (1,)}) is None
    for odd in (np.float64(1), np.ones(1), {1}, torch.nn.Parameter(torch.ones(1)), torch.ones(1, requires_grad=True)):
        assert "['a'][0]" in not_plain({"a": [odd]})
    assert "the key (1, 2)" in not_plain({(1, 2): 3})


def test_the_shape_of_a_state():
    assert shape_of({"a": torch.ones(2, 3), "b": [1, "x"]}) == {"a": 6, "b": ["value", "value"]}
