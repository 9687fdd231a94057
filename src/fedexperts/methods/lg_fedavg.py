"""LG-FedAvg: every client has an extractor of its own; the head on top of it is one for all."""

from fedexperts.methods.base import Method
from fedexperts.methods.message import Owner


class LGFedAvg(Method):
    """Local representations l_m stay, the global model g on top of them is averaged; one loss trains both together.

    The extractors may differ, if all end in the same width. The authors' code begins with some rounds of FedAvg; that
    needs one architecture, so here all start from scratch, as in the papers that compare different ones.
    """

    name = "lg-fedavg"
    title = "LG-FedAvg"
    source = "Liang et al. 2020: Think Locally, Act Globally: Federated Learning with Local and Global Representations"
    owners = {"extractor": Owner.PRIVATE, "head": Owner.SHARED}
    personal = "extractor"
