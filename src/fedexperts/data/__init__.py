"""Data: sets by name, their partition over clients, one client's split."""

from fedexperts.data.clients import ClientData, label_counts, split
from fedexperts.data.drift import aligned, between, position
from fedexperts.data.partition import MIN_SAMPLES, partition
from fedexperts.data.registry import SetInfo, known
from fedexperts.data.sets import Dataset, is_text, load
from fedexperts.data.words import PADDING, UNKNOWN, Vocabulary

__all__ = [
    "MIN_SAMPLES",
    "PADDING",
    "UNKNOWN",
    "ClientData",
    "Dataset",
    "SetInfo",
    "Vocabulary",
    "aligned",
    "between",
    "is_text",
    "known",
    "label_counts",
    "load",
    "partition",
    "position",
    "split",
]
