"""Readers of the official files of public datasets: bytes from the disk to tensors, nothing of tasks yet."""

from afec.data.cifar import CIFAR, load_cifar10, load_cifar100
from afec.data.cub import CUB, load_cub
from afec.data.omniglot import Alphabet, Omniglot, open_omniglot
from afec.data.root import DataError, data_root

__all__ = [
    "CIFAR",
    "CUB",
    "Alphabet",
    "DataError",
    "Omniglot",
    "data_root",
    "load_cifar10",
    "load_cifar100",
    "load_cub",
    "open_omniglot",
]
