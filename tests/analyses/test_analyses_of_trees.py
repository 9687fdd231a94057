"""A shared expert that grows: numbers worked out by hand, and a real run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import finished, make_task

from fedexperts import analyses
from fedexperts.analyses import NORMAL, OVER, UNDER, USE, Growth, Use
from fedexperts.analyses.tables import write_table
from fedexperts.config import Settings
from fedexperts.engine import Simulation
from fedexperts.errors import MethodError, SavedStateError
from fedexperts.methods import Model
from fedexperts.methods.evolution import SPECTRA, TREE
from fedexperts.methods.growth import Tree, health

SMALL = {"width": 12, "hidden": 6}
# The first expands after round 2, and its mixture shrinks after round 4, when the third expands in the same places.
SWING = """round,sub_expert,rank,tail,threshold,mixture_tail,change
1,0,0.9,0.01,0.8,0,0
1,1,0.7,0.01,0.8,0,0
1,2,0.7,0.01,0.8,0,0
2,0,0.9,0.01,0.81,0,1
2,1,0.7,0.01,0.79,0,0
2,2,0.7,0.01,0.79,0,0
3,0,0.9,0.05,0.82,0.06,0
3,1,0.7,0.01,0.78,0,0
3,2,0.7,0.01,0.78,0,0
3,3,0.9,0.06,0.8,0.06,0
3,4,0.9,0.07,0.8,0.06,0
4,0,0.9,0.05,0.83,0.07,-1
4,1,0.7,0.01,0.77,0,0
4,2,0.8,0.01,0.78,0,1
4,3,0.9,0.06,0.81,0.07,0
4,4,0.9,0.1,0.81,0.07,0
5,0,0.9,0.05,0.83,0,0
5,1,0.7,0.01,0.77,0,0
5,2,0.8,0.01,0.78,0.01,0
5,3,0.9,0.01,0.8,0.01,0
5,4,0.9,0.01,0.8,0.01,0
"""


@dataclass(frozen=True)
class Kept:
    """What is needed of a record."""

    folder: Path | None
    settings: Settings


def kept(folder: Path | None, **options: Any) -> Kept:
    return Kept(folder, Settings.check({"method": "fedemoe", "options": SMALL | {"limit": 5} | options}))


@pytest.fixture(scope="module")
def grown() -> Simulation:
    return finished("fedemoe", make_task("cnn5"), rounds=2, participation=1.0, options=SMALL | {"scale_every": 1})


def test_a_tree_is_replayed_from_its_table(tmp_path: Path) -> None:
    assert Growth.load(kept(None)) is None
    assert Growth.load(kept(tmp_path)) is None
    (tmp_path / TREE).write_text(SWING)
    found = Growth.load(kept(tmp_path))
    assert found.rounds == 5
    assert found.leaves().tolist() == [3, 3, 5, 5, 5]
    assert [change[:5] for change in found.changes] == [
        (2, 0, True, 0.9, 0.81), (4, 0, False, 0.07, 0.05), (4, 2, True, 0.8, 0.78),
    ]  # fmt: skip
    assert {number: sorted(tree.paths) for number, tree in found.trees().items()} == {
        0: [0, 1, 2], 2: [0, 1, 2, 3, 4], 4: [0, 1, 2, 3, 4],
    }  # fmt: skip


def test_lives_are_how_long_each_was_where(tmp_path: Path) -> None:
    (tmp_path / TREE).write_text(SWING)
    lives = Growth.load(kept(tmp_path)).lives()
    assert [(life.position, life.leaf, life.begin, life.end) for life in lives] == [
        ((0,), 0, 0, 2),
        ((0,), None, 2, 4),
        ((0,), 0, 4, 6),
        ((0, 0), 0, 2, 4),
        ((0, 1), 3, 2, 4),
        ((0, 2), 4, 2, 4),
        ((1,), 1, 0, 6),
        ((2,), 2, 0, 4),
        ((2,), None, 4, 6),
        ((2, 0), 3, 4, 6),
        ((2, 1), 4, 4, 6),
        ((2, 2), 2, 4, 6),
    ]
    caused = {(life.position, life.begin): life.why.figure for life in lives if life.why is not None}
    assert caused == {((0,), 2): 0.9, ((0,), 4): 0.07, ((2,), 4): 0.8}


def test_a_runs_tree_is_its_servers_and_a_broken_file_is_named(grown: Simulation, tmp_path: Path) -> None:
    write_table(tmp_path / TREE, *grown.method.tables(grown.server)[TREE])
    found = Growth.load(kept(tmp_path, limit=9, scale_every=1))
    assert len(found.changes) == 3
    assert found.changes[-1].tree.paths == Tree.of(grown.server).paths
    np.testing.assert_allclose(found.log, grown.server["growth.log"], rtol=1e-5)
    (tmp_path / TREE).write_text("round,sub_expert\n1,2\n")
    with pytest.raises(SavedStateError, match=r"make it again: rm .*summary.json; fedexperts resume"):
        Growth.load(kept(tmp_path))


def test_spectra_say_what_the_server_sees(grown: Simulation, tmp_path: Path) -> None:
    assert analyses.load_spectra(kept(tmp_path)) is None
    write_table(tmp_path / SPECTRA, *grown.method.tables(grown.server)[SPECTRA])
    found = analyses.load_spectra(kept(tmp_path))
    assert [one.leaf for one in found] == list(Tree.of(grown.server).paths)
    for one in found:
        first = torch.linalg.svdvals(grown.server[f"shared_expert.experts.{one.leaf}.0.weight"])
        torch.testing.assert_close(one.values[0], first, rtol=1e-5, atol=1e-6)
        assert one.seen == pytest.approx(health(grown.server, [one.leaf], 0.99, 0.9)[one.leaf], abs=1e-5)
        assert one.threshold == pytest.approx(grown.server["growth.thresholds"][one.leaf].item(), abs=1e-5)


def test_labels_are_those_of_figure_3(tmp_path: Path) -> None:
    flat, falling, between = [1.0] * 4, [1.0, 0.01, 0.01, 0.01], [1.0, 1.0, 1.0, 0.1]
    rows = [
        f"{leaf},0.8,0,{component},{value}"
        for leaf, values in enumerate((flat, falling, between))
        for component, value in enumerate(values)
    ]
    (tmp_path / SPECTRA).write_text("\n".join(["sub_expert,threshold,matrix,component,value", *rows, ""]))
    found = analyses.load_spectra(kept(tmp_path, tail_share=0.75, threshold=0.5))
    assert [one.label for one in found] == [OVER, UNDER, UNDER]  # tail energies 0.25, 0 and 0.003
    assert [one.seen.rank for one in found] == [1, 0.25, 0.75]
    (tmp_path / SPECTRA).write_text((tmp_path / SPECTRA).read_text().replace("2,0.8,", "2,0.7,"))
    assert [one.label for one in analyses.load_spectra(kept(tmp_path, tail_share=0.75))] == [OVER, UNDER, NORMAL]


def test_use_is_what_the_clients_models_do(grown: Simulation, tmp_path: Path) -> None:
    found = analyses.use(grown)
    assert found.leaves == list(range(9))
    for client in (0, 4):
        model = Model(grown.method.parts(grown.specs[client])).double().eval()
        model.load_state_dict(grown.client_state(client))
        features = model.extractor(grown.data.x(torch.from_numpy(grown.task.clients[client].test)))
        asked = model.gate(features)[:, -1] > 0
        used = (model.shared_expert.weights(features.flatten(1)) > 0) & asked[:, None]
        assert found.asked[client] == pytest.approx(asked.double().mean().item())
        np.testing.assert_allclose(found.used[client], used.double().mean(0))
    assert found.used.any()
    found.save(tmp_path / USE)
    again = Use.load(tmp_path)
    assert again.leaves == found.leaves
    np.testing.assert_allclose(again.used, found.used, atol=1e-5)
    with pytest.raises(MethodError, match="FedAvg \\(fedavg\\) has no shared expert that is made of others"):
        analyses.use(finished("fedavg", make_task(), rounds=1))


def test_what_two_clients_share() -> None:
    used = np.array([[0.5, 0.5, 0], [1, 0.5, 0.5], [0, 0, 1], [0, 0, 0]])
    alike, others = Use([0, 1, 2], used.max(axis=1), used).shared(np.array([0, 0, 1, 1]))
    assert alike == pytest.approx(0.5 + 0.25)  # clients 0 and 1; the last one uses nothing
    assert others == pytest.approx((0 + 0.25) / 2)
    assert Use([0], np.ones(2), np.ones((2, 1))).shared(np.array([0, 1])) == (None, 1)
