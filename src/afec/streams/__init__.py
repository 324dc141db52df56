"""Where tasks come from."""

from afec.streams.digits import digits_regression
from afec.streams.task import Split, Stream, Task

__all__ = ["Split", "Stream", "Task", "digits_regression"]
