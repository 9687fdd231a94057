"""Real processes over TLS, and kill -9."""

import random
import threading
from pathlib import Path

import pytest
from consortium import PATIENCE, Consortium, absences, until

from fedexperts.federation.board import STATUS, Board
from fedexperts.federation.site import OWN
from fedexperts.federation.vault import Vault
from fedexperts.measure import HISTORY, SUMMARY
from fedexperts.measure.history import read_history

pytestmark = pytest.mark.federation


def trained(run: Path) -> list[tuple[int, int]]:
    """(round, client) of all replies that counted."""
    return [(row["round"], row["client"]) for row in read_history(run / HISTORY) if row["train_loss"] is not None]


SHORT = {"rounds": 4, "epochs": 1, "batch_size": 16, "lr": 0.1, "experts": 2, "asked": 1, "start": "own"}


def test_whoever_dies_comes_back_and_the_result_is_as_if_nobody_had(tmp_path: Path) -> None:
    """Deaths at five points; each step is done once, so all figures and bytes are those of the simulation."""
    town = Consortium(tmp_path / "town", ("a", "b", "c"), deadline=PATIENCE, minimum=3)
    flags = [
        town.will_die("a", "training", after=7),
        town.will_die("b", "kept", after=3),
        town.will_die("c", "half-kept", after=2),
        town.will_die("server", "taking", after=4),
    ]
    with town.alive():
        run = town.run("fedmoe-da", **SHORT)
        record = town.finished(run)
    assert sorted(town.deaths) == ["a", "b", "c", "server"]
    assert not any(flag.exists() for flag in flags)
    assert read_history(run / HISTORY) == town.simulated(run).rows
    assert not (run / "absences.csv").exists()
    assert record.totals["peer_bytes"] > 0


@pytest.mark.parametrize("point", ["complete", "between"])
def test_a_server_that_dies_before_or_after_it_has_saved_a_round_goes_on(point: str, tmp_path: Path) -> None:
    town = Consortium(tmp_path / "town", ("a", "b"), deadline=PATIENCE, minimum=2)
    town.will_die("server", point, after=2)
    with town.alive():
        run = town.run("fedmoe", **{"rounds": 4, "batch_size": 16})
        town.finished(run)
    assert town.deaths == ["server"]
    assert read_history(run / HISTORY) == town.simulated(run).rows


def test_who_dies_while_it_serves_a_peer_comes_back(tmp_path: Path) -> None:
    """Those who wait for its expert use their own; it is in the same round again, and in all later ones."""
    town = Consortium(tmp_path / "town", ("a", "b", "c"), deadline=PATIENCE, minimum=3)
    town.will_die("a", "serving", after=1)
    with town.alive():
        run = town.run("fedmoe-da", **SHORT)
        town.finished(run)
    assert town.deaths == ["a"]
    assert "without client 0: a at localhost" in town.log("b") + town.log("c")
    assert not (run / "absences.csv").exists()
    assert trained(run) == [(number, k) for number in (1, 2, 3, 4) for k in (0, 1, 2)]


def test_who_is_slow_past_the_deadline_is_done_without_and_takes_part_again(tmp_path: Path) -> None:
    """It waits until the server has done without it; the others have far more time than they need."""
    town = Consortium(tmp_path / "town", ("a", "b", "c"), deadline=15, minimum=2)
    slow = town.will_die("b", "slow", after=12)
    with town.alive():
        run = town.run("fedmoe", **{"rounds": 6, "batch_size": 16})
        until(r"without b: no answer within 15 s", town.folder / "server" / "log.txt")
        slow.touch()
        town.finished(run)
    assert not town.deaths
    missing = absences(run)
    assert {row["site"] for row in missing} == {"b"}
    assert missing[0]["task"] == "train"
    assert all("no answer within 15 s" in row["why"] for row in missing), missing
    assert {(6, 0), (6, 1), (6, 2)} < set(trained(run))
    assert (int(missing[0]["round"]), 1) not in trained(run)


def test_a_site_whose_disk_is_full_says_so_and_is_done_without(tmp_path: Path) -> None:
    town = Consortium(tmp_path / "town", ("a", "b", "c"), deadline=PATIENCE, minimum=2)
    town.will_die("b", "full", after=2)  # rounds 1 and 2 are kept
    with town.alive():
        run = town.run("fedmoe", **{"rounds": 4, "batch_size": 16, "evaluate_every": 4})
        town.finished(run)
    assert not town.deaths
    [missing] = absences(run)
    assert (missing["round"], missing["site"], missing["task"]) == ("3", "b", "train")
    assert "File too large" in missing["why"]
    assert trained(run) == [(number, k) for number in (1, 2, 3, 4) for k in (0, 1, 2) if (number, k) != (3, 1)]


def test_chaos(tmp_path: Path) -> None:
    """Five sites, 20 rounds; whenever two more are complete somebody is killed, at some moment of the next."""
    town = Consortium(tmp_path / "town", ("a", "b", "c", "d", "e"), deadline=20, minimum=3, attempts=10)
    rng, over = random.Random(0), threading.Event()

    def havoc() -> None:
        last = 0
        while not over.wait(0.05):
            if (now := Board.read(town.folder / "server" / STATUS).get("round", 0)) > last + 1:
                over.wait(rng.uniform(0, 0.5))
                town.kill(rng.choice(["server", *town.sites]))
                last = now

    with town.alive():
        run = town.run("fedmoe", **{"rounds": 20, "batch_size": 16, "lr": 0.1, "epochs": 2})
        thread = threading.Thread(target=havoc)
        thread.start()
        try:
            disturbed = town.finished(run)
        finally:
            over.set()
            thread.join()
    assert (run / SUMMARY).exists()
    assert len(town.deaths) > 3
    undisturbed = town.simulated(run)
    accuracy = [record.figures["last"].mean for record in (disturbed, undisturbed)]
    assert abs(accuracy[0] - accuracy[1]) < 0.05, (accuracy, town.deaths)
    for site in town.sites:
        vault = Vault(town.folder / site / "state" / run.name)
        assert vault.trained > 15  # of 20
        assert vault.tensors(OWN)  # whole, or that is an error
