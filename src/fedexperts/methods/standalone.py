"""Standalone: every client trains alone. A personalised method that loses to it has not earned its communication."""

from fedexperts.methods.base import Method
from fedexperts.methods.message import Owner


class Standalone(Method):
    """Nothing is shared, so nothing is sent."""

    name = "standalone"
    title = "Standalone"
    source = "the reference of every comparison"
    owners = {"extractor": Owner.PRIVATE, "head": Owner.PRIVATE}
