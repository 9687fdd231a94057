"""Texts from end to end: a file of the user's own, the command line, a saved run, plain texts to ask it."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import sentences

import fedexperts
from fedexperts.errors import DataError

Cli = Callable[..., tuple[int, str, str]]
SMALL = ("--clients", 4, "--rounds", 2, "--device", "cpu", "--partition", "homogeneous")


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    dataset, path = sentences(160), tmp_path / "mine" / "reviews.csv"
    path.parent.mkdir()
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        table.writerows(zip(dataset.inputs, (dataset.class_names[label] for label in dataset.labels), strict=True))
    return path


def test_a_run_on_texts_is_saved_and_asked(cli: Cli, reviews: Path) -> None:
    code, out, _ = cli("run", "fedper", "--data", "mine/reviews.csv", *SMALL, "--out", "done", "--vocabulary", 50)
    assert code == 0
    assert "50 words known from training data" in " ".join(out.split())
    result = fedexperts.load("done")
    assert result.record.settings.model == ("fasttext",)
    assert (result.record.settings.data, result.record.settings.data_dir) == ("reviews.csv", reviews.parent)
    texts = ["Business1, world2 any3!", "sports4 sports5 nobody says", ""]
    found = result.predict(1, texts)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    dataset = result.simulation.task.dataset
    assert dataset.vocabulary is not None
    assert np.array_equal(result.predict(1, dataset.vocabulary.encode(texts, 100)), found)
    assert np.array_equal(result.predict(1, np.array(texts)), found)
    assert not np.array_equal(result.predict(2, texts), found)
    too_high = np.full((1, 100), len(dataset.vocabulary), np.int32)
    for wrong in (np.zeros((1, 7), np.int32), np.zeros((1, 100)), too_high, -too_high, np.array([["a"]])):
        with pytest.raises(DataError, match=r"client 0 takes texts, or int32 numbers of words below 52 of shape"):
            result.predict(0, wrong)


def test_texts_can_be_looked_at_before_a_run(cli: Cli, reviews: Path) -> None:
    code, out, _ = cli("data", "--data", reviews, "--clients", 4)
    assert code == 0
    assert "reviews.csv, pathological, 4 clients" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "cnn5"), "error: model 'cnn5' is not for texts; for them there is: fasttext, fasttext-wide\n"),
        (("--model", "fasttext,cnn5"), "error: model 'cnn5' is not for texts"),
        (("--data", "gone.csv"), "error: there is no file"),
        (("--text-length", "0"), "error: setting 'text_length' cannot be 0"),
    ],
)
def test_what_cannot_run_says_so_in_a_line(cli: Cli, reviews: Path, words: tuple[str, ...], message: str) -> None:
    code, _, err = cli("run", "fedavg", "--data", reviews, *SMALL, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(message)
    assert not Path("runs").exists()


def test_analyses_take_texts(cli: Cli, reviews: Path) -> None:
    cli("run", "fedmoe", "--data", reviews, *SMALL, "--out", "done")
    for question in ("gates", "tsne"):
        assert cli("analyse", question, "done")[0] == 0
