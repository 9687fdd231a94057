"""Data: sets by name, their partition over clients, one client's split."""

from fedexperts.data.clients import ClientData, label_counts, split
from fedexperts.data.drift import aligned, between, position
from fedexperts.data.partition import MIN_SAMPLES, partition
from fedexperts.data.registry import SetInfo, known
from fedexperts.data.sets import Dataset, load

__all__ = [
    "MIN_SAMPLES",
    "ClientData",
    "Dataset",
    "SetInfo",
    "aligned",
    "between",
    "known",
    "label_counts",
    "load",
    "partition",
    "position",
    "split",
]
