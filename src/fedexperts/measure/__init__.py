"""What a run was worth and what it cost: accuracy, ledger, FLOPs."""

from fedexperts.measure.cost import Cost, common_target, cost_until
from fedexperts.measure.fetches import FETCH_COLUMNS, FETCHES, Fetches
from fedexperts.measure.figures import MEANING, Curve, Figure, Kind, best_round, curve, totals
from fedexperts.measure.flops import FlopMeter
from fedexperts.measure.history import COLUMNS, History, Row, read_history
from fedexperts.measure.ledger import Ledger, Traffic
from fedexperts.measure.privacy import Privacy, privacy_of
from fedexperts.measure.record import (
    BEFORE,
    HISTORY,
    LABELS,
    SETTINGS,
    STATE,
    SUMMARY,
    Record,
    lacking,
    read_labels,
    task_of,
    write_labels,
)

__all__ = [
    "BEFORE", "COLUMNS", "FETCHES", "FETCH_COLUMNS", "HISTORY", "LABELS", "MEANING", "SETTINGS", "STATE", "SUMMARY",
    "Cost", "Curve", "Fetches", "Figure", "FlopMeter", "History", "Kind", "Ledger", "Privacy", "Record", "Row",
    "Traffic",
    "best_round", "common_target", "cost_until", "curve", "lacking", "privacy_of", "read_history", "read_labels",
    "task_of", "totals", "write_labels",
]  # fmt: skip
