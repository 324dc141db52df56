"""Which classes come in which order, by name or from a file, and how many a task has."""

import numpy as np
import pytest
import torch

from afec.data import DataError
from afec.streams import digits, make_stream
from afec.streams.classes import blocks, check_sizes, first_of_each, ordered

NAMES = [f"class {k}" for k in range(100)]


def never():
    raise AssertionError("no seed was asked for")


def test_orders_by_name():
    assert ordered("s", "sorted", NAMES, never) == list(range(100))
    assert ordered("s", "seed", NAMES, lambda: [2, 0, 1]) == [2, 0, 1]
    found = ordered("s", "lucir-1993", NAMES, never)
    assert found[:10] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]  # as LUCIR's own runs print it
    np.random.seed(1993)
    order = np.arange(100)
    np.random.shuffle(order)
    assert found == order.tolist()


def test_an_order_from_a_file_by_name_or_by_number(tmp_path):
    file = tmp_path / "order.txt"
    file.write_text("# mine\ncat\n\n2\n0\n")
    assert ordered("s", str(file), ["ant", "cat", "dog"], never) == [1, 2, 0]
    file.write_text("1\n0\n")  # a name comes before a number
    assert ordered("s", str(file), ["1", "0"], never) == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat\ndog\ncat\nant\n", "has 'cat' twice; each class comes once"),
        ("cat\n1\ndog\n", "has '1' twice"),
        ("cat\nant\n", "lacks 1 of 3 classes, such as 'dog'; list all of them"),
        ("cat\nant\ndig\n", "has 'dig', which is no class here; did you mean 'dog'"),
        ("", "lacks 3 of 3 classes"),
    ],
)
def test_wrong_files(text, message, tmp_path):
    (tmp_path / "order.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        ordered("s", str(tmp_path / "order.txt"), ["ant", "cat", "dog"], never)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "order.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        ordered("s", str(tmp_path / "order.txt"), NAMES, never)


def test_unknown_orders_and_scenarios_say_what_there_is():
    with pytest.raises(
        ValueError, match=r"digits got class_order='sortd': unknown class order 'sortd'; did you mean 'sorted'"
    ):
        digits(0, class_order="sortd")
    with pytest.raises(ValueError, match="digits got scenario='clas': unknown scenario 'clas'; did you mean 'class'"):
        digits(0, scenario="clas")


def test_sizes_cut_the_order_and_may_leave_classes_over():
    assert blocks([4, 2, 0, 1, 3], [2, 1]) == [[4, 2], [0]]
    assert check_sizes("s", (50, 10), 100) == [50, 10]
    assert check_sizes("s", [2, 1], 3, "class") == [2, 1]
    for sizes, scenario in (([2, 1], "task"), ([], "class"), ([0], "class"), ([3, 1], "class"), ([True], "class")):
        with pytest.raises(ValueError, match=r"s got sizes=.*at least . each and 3 in all at most"):
            check_sizes("s", sizes, 3, scenario)


def test_the_order_of_digits_is_that_of_the_file(tmp_path):
    (tmp_path / "order.txt").write_text("\n".join("9876543210"))
    stream = make_stream("digits", 5, sizes=[6, 2, 2], class_order=str(tmp_path / "order.txt"), scenario="class")
    assert [task.classes for task in stream.tasks] == [(9, 8, 7, 6, 5, 4), (3, 2), (1, 0)]
    assert stream.tasks[0].test.size > stream.tasks[1].test.size


def test_the_order_of_icarl_has_each_class_of_cifar100_once():
    names = list(map(str, range(100)))
    order = ordered("cifar100", "icarl", names, list)
    assert order[:6] == [87, 0, 52, 58, 44, 91]
    assert sorted(order) == list(range(100))
    with pytest.raises(ValueError, match="digits has 10 classes, and class_order='icarl' is of the 100 of CIFAR-100"):
        ordered("digits", "icarl", names[:10], list)


def test_the_first_images_of_each_class():
    rows, labels = torch.tensor([7, 5, 3, 1, 9]), torch.tensor([0, 1, 0, 0, 1])
    assert first_of_each(rows, labels, 2).tolist() == [7, 5, 3, 9]
    assert first_of_each(rows, labels, 1).tolist() == [7, 5]
