from typing import Any

import numpy as np
import pytest
from support import sentences

from fedexperts.data import PADDING, UNKNOWN, Dataset, Vocabulary
from fedexperts.data.words import words
from fedexperts.errors import DataError
from fedexperts.task import Task


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Oil prices RISE 3.5%!", ["oil", "prices", "rise", "3", "5"]),
        ("don't snake_case", ["don", "t", "snake", "case"]),
        ("Märkte fallen – ΑΒΓ 東京", ["märkte", "fallen", "αβγ", "東京"]),
        (" … \n", []),
    ],
)
def test_words_are_runs_of_letters_and_digits(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_the_most_frequent_words_are_known_and_ties_are_settled() -> None:
    texts = ["b a c c", "C b d", "a"]
    assert Vocabulary.of(texts, 3).words == ("c", "a", "b")
    assert Vocabulary.of(reversed(texts), 3) == Vocabulary.of(texts, 3)
    assert Vocabulary.of(texts, 99).words == ("c", "a", "b", "d")


def test_padding_and_unknown_words_are_not_the_same() -> None:
    vocabulary = Vocabulary(("up", "down"))
    assert len(vocabulary) == 4
    rows = vocabulary.encode(["down Up sideways", "", "up up up up up up"], length=5)
    assert rows.dtype == np.int32
    assert rows.tolist() == [[3, 2, UNKNOWN, PADDING, PADDING], [PADDING] * 5, [2] * 5]
    assert PADDING != UNKNOWN
    assert not {PADDING, UNKNOWN} & set(vocabulary.numbers.values())


def signed(count: int = 400) -> Dataset:
    """Sentences that each have a word of their own too."""
    plain = sentences(count)
    texts = np.array([f"{text} signed{i}" for i, text in enumerate(plain.inputs.tolist())])
    return Dataset("signed", texts, plain.labels, plain.class_names)


@pytest.mark.parametrize("drift", ["none", "sudden"])
def test_no_word_is_known_that_only_held_out_data_have(drift: str) -> None:
    dataset = signed()
    task = Task.of(dataset=dataset, clients=5, partition="dirichlet", alpha=1, drift=drift, phases=2)
    training = {i for client in task.clients for i in client.train.tolist()}
    others = set(range(len(dataset))) - training
    assert training
    assert others
    assert task.dataset.vocabulary is not None
    known = set(task.dataset.vocabulary.words)
    assert {f"signed{i}" for i in training} <= known
    assert not {f"signed{i}" for i in others} & known
    assert known == {word for i in training for word in words(dataset.inputs[i])}
    for i in others:
        assert task.dataset.inputs[i].tolist().count(UNKNOWN) == 1


def test_vocabulary_and_length_are_settings() -> None:
    task = Task.of(dataset=signed(), clients=5, vocabulary=7, text_length=4)
    assert task.dataset.kind == "words"
    assert task.shape == (4, 9)
    assert task.dataset.inputs.shape == (400, 4)
    assert task.dataset.inputs.max() == 8
    assert task.dataset.note == "the first 4 words of each text, 7 words known from training data"
    assert task.settings.model == ("fasttext",)


def test_words_that_another_split_knew_are_not_taken_over() -> None:
    first = Task.of(dataset=signed(), clients=5)
    with pytest.raises(DataError, match="'signed' is numbers of words already; give the texts"):
        Task.of(dataset=first.dataset, clients=4, seed=1)


@pytest.mark.parametrize(
    ("inputs", "vocabulary"),
    [
        (np.zeros((3, 5), np.int32), None),
        (np.zeros((3, 5), np.int64), Vocabulary(("a",))),
        (np.array(["a", "b", "c"]), Vocabulary(("a",))),
    ],
)
def test_numbers_of_words_come_with_their_vocabulary(inputs: Any, vocabulary: Vocabulary | None) -> None:
    with pytest.raises(DataError, match="int32 of shape \\(N, length\\) with a vocabulary"):
        Dataset("odd", inputs, np.array([0, 1, 0]), ("no", "yes"), vocabulary=vocabulary)
