import pytest
import torch

from fedexperts.data import PADDING, UNKNOWN
from fedexperts.errors import SettingsError
from fedexperts.models import TEXT_MODELS, WordMean, blank, build, flat

SHAPE = (6, 12)
TEXTS = torch.tensor([[3, 4, UNKNOWN, 3, PADDING, PADDING], [11, 2, 5, 5, 5, 7]])


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_features_come_before_the_head(name: str) -> None:
    parts = build(name, SHAPE, 4)
    assert list(parts) == ["extractor", "head"]
    features = parts["extractor"](TEXTS)
    assert features.shape == (2, parts["extractor"].features)
    logits = parts["head"](features)
    assert logits.shape == (2, 4)
    assert not torch.allclose(logits.exp().sum(1), torch.ones(2))  # no softmax anywhere


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_padding_does_not_change_an_answer(name: str) -> None:
    extractor = build(name, SHAPE, 4)["extractor"]
    longer = torch.cat([TEXTS, torch.full((2, 5), PADDING)], dim=1)
    torch.testing.assert_close(extractor(longer), extractor(TEXTS))
    torch.testing.assert_close(extractor(TEXTS[:1, :4]), extractor(TEXTS[:1]))
    unknown = torch.where(TEXTS == PADDING, UNKNOWN, TEXTS)
    assert not torch.allclose(extractor(unknown)[0], extractor(TEXTS)[0])
    assert torch.equal(extractor(unknown)[1], extractor(TEXTS)[1])


def test_the_mean_is_that_of_the_words() -> None:
    words = WordMean(SHAPE, 5)
    torch.testing.assert_close(words(TEXTS)[0], words.weight[[3, 4, UNKNOWN, 3]].mean(0))
    words(TEXTS).square().sum().backward()
    assert words.weight.grad is not None
    moved = words.weight.grad.abs().sum(1) > 0
    assert moved.nonzero().flatten().tolist() == sorted(set(TEXTS.flatten().tolist()) - {PADDING})


def test_a_text_without_words_has_an_answer() -> None:
    assert torch.equal(WordMean(SHAPE, 5)(blank(SHAPE)), torch.zeros(1, 5))


def test_whole_numbers_of_any_width_are_read() -> None:
    words = WordMean(SHAPE, 5)
    assert torch.equal(words(TEXTS.int()), words(TEXTS))


@pytest.mark.parametrize(("shape", "values"), [(SHAPE, 32), ((3, 8, 8), 192)])
def test_gates_read_texts_and_images(shape: tuple[int, ...], values: int) -> None:
    reads, inputs = flat(shape)
    assert reads(blank(shape)).shape == (1, inputs) == (1, values)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn5", SHAPE, "model 'cnn5' is not for texts; for them there is: fasttext, fasttext-wide"),
        ("fasttext", (1, 8, 8), "model 'fasttext' is not for images; for them there is: cnn1, cnn2"),
    ],
)
def test_a_model_of_the_other_kind_is_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build(name, shape, 4)
