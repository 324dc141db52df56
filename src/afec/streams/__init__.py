"""Where tasks come from."""

from afec.streams.cifar10_regression import cifar10_regression
from afec.streams.digits import digits, digits_regression
from afec.streams.registry import STREAMS, check_stream, make_stream
from afec.streams.task import Split, Stream, Task

# `digits` is the function here and a module in this package: `from afec.streams.digits import ...` finds the module still.
__all__ = [
    "STREAMS",
    "Split",
    "Stream",
    "Task",
    "check_stream",
    "cifar10_regression",
    "digits",
    "digits_regression",
    "make_stream",
]
