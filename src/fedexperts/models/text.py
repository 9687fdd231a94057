"""Models for texts: fastText's mean of word embeddings, and linear layers on it."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from fedexperts.data import PADDING
from fedexperts.models.cnn import Shape


class WordMean(nn.Embedding):
    """The mean of the embeddings of a text's words; padding is none of them, an unknown word is one like any other.

    The words' rows are looked up. The alternative, counts of words times the table, has the same gradient, but its
    matrix of counts is as wide as the vocabulary: for a step of 20 clients × 64 texts with 20,000 words it is 102 MB,
    and the products with a table of width 32 are 3 GFLOP, where 100 words a text looked up are 16 MB and hardly any
    arithmetic (on one core 1.2 ms against 3.6 ms a client). The gradient of a lookup is summed after sorting the words,
    in the same order every time; it is dense, as optimisers want it here (20 × 20,000 × 32 numbers are 51 MB).
    """

    def __init__(self, shape: Shape, width: int) -> None:
        _, words = shape
        super().__init__(words, width)

    def forward(self, x: Tensor) -> Tensor:
        rows = F.embedding(x, self.weight)
        is_word = (x != PADDING).to(rows)
        return (rows * is_word[..., None]).sum(-2) / is_word.sum(-1, keepdim=True).clamp(min=1)


class TextExtractor(nn.Sequential):
    """The mean embedding of a text's words, then ReLU'd linear layers if there are any."""

    def __init__(self, shape: Shape, width: int, widths: Sequence[int] = ()) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict(words=WordMean(shape, width))
        for i, (before, after) in enumerate(zip((width, *widths), widths, strict=False), 1):
            layers[f"fc{i}"] = nn.Linear(before, after)
            layers[f"fc_relu{i}"] = nn.ReLU()
        super().__init__(layers)
        self.features = (width, *widths)[-1]
