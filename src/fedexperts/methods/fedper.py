"""FedPer: the extractor is everyone's, the head is the client's own."""

from fedexperts.methods.base import Method
from fedexperts.methods.message import Owner


class FedPer(Method):
    """Base layers are averaged, personalisation layers stay; both are trained together."""

    name = "fedper"
    title = "FedPer"
    source = "Arivazhagan et al. 2019: Federated Learning with Personalization Layers"
    owners = {"extractor": Owner.SHARED, "head": Owner.PRIVATE}
    personal = "head"
