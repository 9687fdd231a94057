"""What a run was worth and what it cost: accuracy, ledger, FLOPs."""

from fedexperts.measure.figures import MEANING, Curve, Figure, Kind, curve, totals
from fedexperts.measure.flops import FlopMeter
from fedexperts.measure.history import COLUMNS, History, Row, read_history
from fedexperts.measure.ledger import Ledger, Traffic
from fedexperts.measure.record import HISTORY, LABELS, SETTINGS, STATE, SUMMARY, Record, write_labels

__all__ = [
    "COLUMNS", "HISTORY", "LABELS", "MEANING", "SETTINGS", "STATE", "SUMMARY",
    "Curve", "Figure", "FlopMeter", "History", "Kind", "Ledger", "Record", "Row", "Traffic",
    "curve", "read_history", "totals", "write_labels",
]  # fmt: skip
