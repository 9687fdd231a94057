"""Shows what was measured: tables, figures, the page, and the progress of a run."""

from fedexperts.report.figures import accuracy_curves, client_accuracy, label_picture, loss_curves, traffic
from fedexperts.report.page import write_label_page, write_page
from fedexperts.report.progress import ProgressDisplay
from fedexperts.report.table import comparison_table

__all__ = [
    "ProgressDisplay", "accuracy_curves", "client_accuracy", "comparison_table", "label_picture",
    "loss_curves", "traffic", "write_label_page", "write_page",
]  # fmt: skip
