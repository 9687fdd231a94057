"""FedAvg: one model for all, the weighted mean of what the clients made of it."""

from fedexperts.methods.base import Method


class FedAvg(Method):
    """ω = Σ n_k/n ω_k over the sampled clients. It is the default method, so there is nothing to add."""

    name = "fedavg"
    title = "FedAvg"
    source = "McMahan et al. 2017: Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS"
