"""`python -m afec`, also under `torchrun -m afec`."""

from afec.cli import entry

entry()
