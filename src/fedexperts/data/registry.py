"""The data sets that can be asked for by name, and which files of them are looked for."""

import string
from dataclasses import dataclass
from pathlib import Path

from fedexperts.errors import DataError, suggestion

_DIGITS = tuple(string.digits)
_FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_MNIST_FILES = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


@dataclass(frozen=True)
class SetInfo:
    """One data set as its publisher made it."""

    name: str
    title: str
    classes: int
    samples: int
    """Train and test together, as published."""
    shape: tuple[int, int, int] | None
    """Channels, height, width; None for texts."""
    stem: str = ""
    """The name of the plain form, `STEM.npz`; empty for a set that needs no files."""
    files: tuple[str, ...] = ()
    """The publisher's own files; images in IDX form may also end in .gz or be called `….idx3-ubyte`."""
    folders: tuple[str, ...] = (".",)
    """Where in the data folder the publisher's files may lie."""
    hub: str = ""
    """The copy on the Hugging Face hub."""
    class_names: tuple[str, ...] = ()
    reduced: tuple[tuple[int, int, int], ...] = ()
    """Smaller shapes that are in common use and are taken too."""
    first_labels: tuple[int, ...] = ()
    """How the training labels begin, where another set has files of the same names."""

    @property
    def names(self) -> tuple[str, ...]:
        """The classes' names, or their numbers where a form of the set does not bring them."""
        return self.class_names or tuple(str(i) for i in range(self.classes))


_SETS = (
    SetInfo("digits", "Digits (embedded in scikit-learn)", 10, 1_797, (1, 8, 8), class_names=_DIGITS),
    SetInfo(
        name="mnist",
        title="MNIST",
        classes=10,
        samples=70_000,
        shape=(1, 28, 28),
        stem="mnist",
        files=_MNIST_FILES,
        folders=("MNIST/raw", "MNIST", "mnist", "."),
        hub="ylecun/mnist",
        class_names=_DIGITS,
        first_labels=(5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    ),
    SetInfo(
        name="fashion-mnist",
        title="Fashion-MNIST",
        classes=10,
        samples=70_000,
        shape=(1, 28, 28),
        stem="fashion_mnist",
        files=_MNIST_FILES,
        folders=("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist", "."),
        hub="zalando-datasets/fashion_mnist",
        class_names=_FASHION,
        first_labels=(9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
    ),
    SetInfo(
        name="emnist",
        title="EMNIST Letters",
        classes=26,
        samples=145_600,
        shape=(1, 28, 28),
        stem="emnist_letters",
        files=tuple("emnist-letters-" + name.replace("t10k", "test") for name in _MNIST_FILES),
        folders=("EMNIST/raw", "EMNIST", "emnist", "gzip", "."),
        hub="tanganke/emnist_letters",
        class_names=tuple(string.ascii_uppercase),
    ),
    SetInfo(
        name="cifar10",
        title="CIFAR-10",
        classes=10,
        samples=60_000,
        shape=(3, 32, 32),
        stem="cifar10",
        files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
        folders=("cifar-10-batches-py",),
        hub="uoft-cs/cifar10",
        class_names=_CIFAR10,
    ),
    SetInfo(
        name="cifar100",
        title="CIFAR-100",
        classes=100,
        samples=60_000,
        shape=(3, 32, 32),
        stem="cifar100",
        files=("train", "test", "meta"),
        folders=("cifar-100-python",),
        hub="uoft-cs/cifar100",
    ),
    SetInfo(
        name="svhn",
        title="SVHN (Street View House Numbers)",
        classes=10,
        samples=99_289,
        shape=(3, 32, 32),
        stem="svhn",
        files=("train_32x32.mat", "test_32x32.mat"),
        folders=("svhn", "SVHN", "."),
        hub="ufldl-stanford/svhn",
        class_names=_DIGITS,
    ),
    SetInfo(
        name="tiny-imagenet",
        title="Tiny-ImageNet-200",
        classes=200,
        samples=110_000,
        shape=(3, 64, 64),
        reduced=((3, 32, 32),),
        stem="tiny_imagenet",
        files=("train", "val/images", "val/val_annotations.txt"),
        folders=("tiny-imagenet-200",),
        hub="zh-plus/tiny-imagenet",
    ),
    SetInfo(
        name="ag-news",
        title="AG News",
        classes=4,
        samples=127_600,
        shape=None,
        stem="ag_news",
        files=("train.csv", "test.csv"),
        folders=("ag_news", "ag_news_csv", "."),
        hub="fancyzhx/ag_news",
        class_names=("World", "Sports", "Business", "Sci/Tech"),
    ),
)


def known() -> dict[str, SetInfo]:
    """All data sets by name, the one that needs no files first."""
    return {info.name: info for info in _SETS}


def find(name: str) -> SetInfo:
    """The set of that name; case, dashes, underscores and blanks do not matter."""
    by_name = {_plain(alias): info for info in _SETS for alias in (info.name, info.stem) if alias}
    try:
        return by_name[_plain(name)]
    except KeyError:
        hint = suggestion(name.lower(), known())
        if Path(name).is_dir():
            hint = f"; a folder of clients is given with a slash: {name}/."
        raise DataError(f"unknown data set '{name}'{hint or '.'} Known are: {', '.join(known())}") from None


def _plain(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", "-_ "))
