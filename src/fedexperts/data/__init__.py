"""Data: sets by name, their partition over clients, one client's split."""

from fedexperts.data.clients import ClientData, label_counts, split, split_own
from fedexperts.data.drift import Moving, aligned, between, position
from fedexperts.data.folders import clients_in, in_order, is_folder, read_client, read_inputs
from fedexperts.data.form import Form
from fedexperts.data.partition import MIN_SAMPLES, partition
from fedexperts.data.registry import SetInfo, known
from fedexperts.data.samples import Samples, classes_of, numbered, occurring
from fedexperts.data.scale import Scale, Sums
from fedexperts.data.sets import Dataset, is_text, load
from fedexperts.data.words import PADDING, UNKNOWN, Vocabulary, counted

__all__ = [
    "MIN_SAMPLES", "PADDING", "UNKNOWN", "ClientData", "Dataset", "Form", "Moving", "Samples", "Scale", "SetInfo",
    "Sums", "Vocabulary", "aligned", "between", "classes_of", "clients_in", "counted", "in_order", "is_folder",
    "is_text", "known", "label_counts", "load", "numbered", "occurring", "partition", "position", "read_client",
    "read_inputs", "split", "split_own",
]  # fmt: skip
