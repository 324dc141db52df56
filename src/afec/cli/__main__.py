"""`python -m afec.cli`."""

from afec.cli import entry

entry()
