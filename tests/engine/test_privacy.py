"""Clipping and noise on what leaves a client: what they do, where they come from, and what they cannot cover."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from support import assert_same_bits, finished, make_simulation, make_task, states

from fedexperts.config import PrivacySettings, Settings
from fedexperts.engine import Observer
from fedexperts.engine.privacy import clipped, protected
from fedexperts.errors import PrivacyError, SettingsError
from fedexperts.measure import privacy_of
from fedexperts.measure.privacy import epsilon
from fedexperts.methods import Channel, Message, method_class, registry

TASK = make_task("cnn5,cnn4", sizes=(32, 29, 12))
UNBOUNDED = {
    "fd": "logits",
    "fedcac": "mask",
    "fedemoe": "uses",
    "fedgc": "embeddings",
    "fedgen": "labels",
    "fedgh": "features",
    "fedjets": "use",
    "fedkd": "mentee",
    "fedmix": "use",
    "fedmoe-da": "experts",
    "fedpac": "prototypes",
    "fedproto": "prototypes",
    "fedsa": "prototypes",
    "fedtgp": "prototypes",
    "pm-moe": "begins with another run",
}
"""Methods that clipping and noise cannot cover, and the part because of which."""


class Watched(Observer):
    """What went down and up, by round and client."""

    def __init__(self) -> None:
        self.down: dict[tuple[int, int], Message] = {}
        self.up: dict[tuple[int, int], Message] = {}

    def message(self, now: int, channel: Channel, client: int, message: Message) -> None:
        (self.down if channel is Channel.DOWN else self.up)[now, client] = message

    def changes(self) -> dict[tuple[int, int], torch.Tensor]:
        return {
            when: torch.cat([(tensor - self.down[when].tensors[name]).flatten() for name, tensor in up.tensors.items()])
            for when, up in self.up.items()
        }


def watched(method: str, **values: object) -> Watched:
    seen = Watched()
    finished(method, TASK, observers=(seen,), **values)
    return seen


@pytest.mark.parametrize("method", ["fedmoe", "scaffold"])
def test_without_noise_and_with_a_huge_clip_a_run_is_a_plain_one(method: str) -> None:
    assert_same_bits(states(finished(method, TASK, clip=1e9)), states(finished(method, TASK)))


def test_the_change_that_leaves_is_within_the_clip_and_goes_the_same_way() -> None:
    plain, cut = (watched("fedavg", rounds=1, participation=1.0, clip=clip).changes() for clip in (None, 0.005))
    assert len(plain) == len(TASK.clients)
    for when, change in plain.items():
        assert change.norm() > 0.01
        assert cut[when].norm() == pytest.approx(0.005)
        torch.testing.assert_close(cut[when], change * 0.005 / change.norm())


def test_what_is_a_difference_already_is_bounded_around_nothing() -> None:
    """SCAFFOLD's replies have differences of variates; other tensors have new values."""
    name, privacy = "variate.head.weight", PrivacySettings(clip=0.5)
    sent = Message({name: torch.full((4,), 10.0, dtype=torch.float64)})
    reply = Message({name: torch.ones(4, dtype=torch.float64)})
    left = protected(method_class("scaffold")(), reply, sent, privacy, np.random.default_rng(0)).tensors[name]
    torch.testing.assert_close(left, torch.full((4,), 0.25, dtype=torch.float64))


def test_noise_is_as_large_as_it_says_on_top_of_the_clipped_change() -> None:
    before = {"extractor.weight": torch.zeros(100_000, dtype=torch.float64)}
    sent, reply = Message(before), Message({name: tensor + 3 for name, tensor in before.items()})
    noisy = protected(
        method_class("fedavg")(), reply, sent, PrivacySettings(clip=2.0, noise=0.7), np.random.default_rng(0)
    )
    noise = noisy.tensors["extractor.weight"] - clipped(reply.tensors, before, 2.0)["extractor.weight"]
    assert noise.std().item() == pytest.approx(1.4, rel=0.02)
    assert abs(noise.mean().item()) < 5 * 1.4 / math.sqrt(100_000)


def test_noise_is_anew_by_client_and_round_and_the_same_by_seed() -> None:
    values = {"clip": 1e-9, "noise": 1e6, "participation": 1.0, "rounds": 2}  # next to nothing but noise
    first, again, other = (watched("fedavg", seed=seed, **values).changes() for seed in (0, 0, 1))
    assert len(first) == 2 * len(TASK.clients)
    for when, change in first.items():
        assert torch.equal(change, again[when])
        for another in [other[when], *(first[w] for w in first if w != when)]:
            alike = torch.corrcoef(torch.stack([change, another]))[0, 1]
            assert abs(alike) < 6 / math.sqrt(len(change))


def test_torchs_own_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    sent = Message({"head.weight": torch.zeros(3)})
    protected(method_class("fedavg")(), sent, sent, PrivacySettings(clip=1, noise=1), np.random.default_rng(0))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("method", sorted(registry()))
def test_every_method_is_covered_or_refused_with_its_reason(method: str) -> None:
    settings = {"clip": 1.0, "noise": 0.01, "rounds": 2}
    if method not in UNBOUNDED:
        finished(method, TASK, **settings)
        return
    with pytest.raises(PrivacyError, match=rf"'{method}' cannot run with --clip.* {UNBOUNDED[method]}\b"):
        finished(method, TASK, **settings)


def test_batchnorm_and_other_numbers_are_refused() -> None:
    whole = Message({"extractor.norm.num_batches_tracked": torch.tensor(3)})
    said = Message({"head.weight": torch.zeros(2)}, {"samples": 3, "loss": 0.1})
    for message, why in ((whole, "num_batches_tracked"), (said, "number loss")):
        with pytest.raises(PrivacyError, match=why):
            protected(method_class("fedavg")(), message, message, PrivacySettings(clip=1), np.random.default_rng(0))


def test_epsilon_is_the_accountants() -> None:
    composed = PLDAccountant().compose(dp_accounting.GaussianDpEvent(5.0), 20).get_epsilon(1e-5)
    assert epsilon(5.0, 20, 1e-5) == pytest.approx(composed, rel=1e-4)


def test_epsilon_is_of_the_client_that_is_asked_most_often() -> None:
    simulation = make_simulation("fedavg", TASK, rounds=7, participation=0.4, clip=0.1, noise=5.0)
    found = privacy_of(simulation)
    times = [sum(client in simulation.sample(number) for number in range(1, 8)) for client in range(3)]
    assert found is not None
    assert min(times) < found.rounds == max(times) < 7
    assert found.epsilon == epsilon(5.0, max(times), 1e-5)
    assert any(f"ε = {found.epsilon:.4g} at δ = 1e-05" in note for note in found.notes("FedAvg"))


def test_what_has_no_bound_or_nothing_to_bound_says_so() -> None:
    cut = privacy_of(make_simulation("fedavg", TASK, clip=0.1))
    assert cut is not None
    assert cut.epsilon is None
    assert "∞" in cut.notes("FedAvg")[0]
    assert privacy_of(make_simulation("fedavg", TASK)) is None
    assert privacy_of(make_simulation("standalone", TASK, clip=0.1, noise=1.0)) is None


def test_noise_without_a_clip_is_refused() -> None:
    with pytest.raises(SettingsError, match="give a clip"):
        Settings.check({"noise": 1.0})
