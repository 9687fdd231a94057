"""A folder for each client, in every form, and what is wrong with one."""

from pathlib import Path

import numpy as np
import own
import pytest
from PIL import Image

from fedexperts.data import clients_in, read_client, read_inputs
from fedexperts.data.form import Form
from fedexperts.errors import DataError


def test_arrays(tmp_path: Path) -> None:
    folders = clients_in(own.folder_of_arrays(tmp_path / "clients"))
    assert [folder.name for folder in folders] == ["north", "south", "west"]
    train, test = read_client(folders[1])
    assert (train.inputs.shape, train.inputs.dtype) == ((33, 1, 8, 8), np.uint8)
    assert (len(test.labels), train.where) == (12, "client south, train")


def test_pictures(tmp_path: Path) -> None:
    folder = own.folder_of_pictures(tmp_path / "clients") / "north"
    train, _ = read_client(folder)
    x, y = own.pictures(15, 0)
    assert train.classes == own.CLASSES
    assert sorted(train.labels.tolist()) == sorted(own.CLASSES[label] for label in y)
    assert {image.tobytes() for image in train.inputs} == {image.tobytes() for image in x}
    Image.new("RGB", (8, 8), (9, 8, 7)).save(folder / "train" / "cat" / "colour.png")
    assert read_client(folder)[0].inputs.shape == (16, 3, 8, 8)
    Image.new("L", (20, 10)).save(folder / "train" / "cat" / "wide.jpg")
    with pytest.raises(DataError, match=r"wide.jpg is 20×10, .* 8×8; give --image-size, for instance 8"):
        read_client(folder)
    assert read_client(folder, image_size=6)[0].inputs.shape == (17, 3, 6, 6)
    Image.new("I;16", (8, 8)).save(folder / "train" / "dog" / "deep.png")
    with pytest.raises(DataError, match=r"deep.png has more than a byte per channel \(mode I;16\)"):
        read_client(folder, image_size=6)


def test_tables_and_texts(tmp_path: Path) -> None:
    train, _ = read_client(own.folder_of_tables(tmp_path / "tables") / "north")
    assert train.columns == ("income", "age")
    assert (train.inputs.shape, set(train.labels.tolist())) == ((30, 2), set(own.CLASSES))
    _, test = read_client(own.folder_of_texts(tmp_path / "texts") / "north")
    assert (test.inputs.dtype.kind, len(test.inputs)) == ("U", 12)


def write(place: Path, **files: str) -> Path:
    place.mkdir()
    for name, content in files.items():
        (place / f"{name}.csv").write_text(content)
    return place


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"train": "age,label\n1,a\n"}, "client x has no test data: .*x should hold test.npz, test.csv"),
        ({"train": "age,label\n1,a\n", "test": "age\n1\n"}, "test.csv: its first line names no column label"),
        ({"train": "age,label\n1,a\n", "test": "age,label\nold,a\n"}, "line 2, column age: 'old' is not a number"),
        ({"train": "age,label\n1,a\n", "test": "age,label\n,a\n"}, "column age: nothing is there"),
        ({"train": "age,label\n1,a\n", "test": "age,label\n1\n"}, "line 2: not as many values as the first line"),
        ({"train": "age,label\n1,a\n", "test": "age,label\n"}, "client x, test: .*test.csv holds no samples"),
    ],
)
def test_what_is_wrong_with_a_client_is_said(tmp_path: Path, files: dict[str, str], says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_client(write(tmp_path / "x", **files))


def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path) -> None:
    clients = own.folder_of_arrays(tmp_path / "clients")
    for folder, says in (
        (tmp_path / "none", "there is no folder .*none; expected .*none/NAME/train and test"),
        (clients / "north", "is one client's folder; give the folder around it"),
        (write(tmp_path / "empty"), "has no folders in it"),
    ):
        with pytest.raises(DataError, match=says):
            clients_in(folder)
    (clients / "north" / "train").mkdir()
    with pytest.raises(DataError, match=r"client north has train.npz and train in .*; leave one"):
        read_client(clients / "north")
    np.savez(clients / "south" / "test.npz", images=np.zeros(3))
    with pytest.raises(DataError, match=r"test\.npz lacks x and y; it holds images"):
        read_client(clients / "south")
    (clients / "west" / "test.npz").write_bytes(b"PK nothing")
    with pytest.raises(DataError, match=r"cannot be read as an \.npz file"):
        read_client(clients / "west")


def test_samples_without_labels(tmp_path: Path) -> None:
    grey, table = Form("image", (1, 8, 8)), Form("values", (2,), columns=("age", "income"))
    x, _ = own.pictures(3, 0)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x[:, 0])
    for name in ("x.npy", "x.npz"):
        names, found = read_inputs(tmp_path / name, grey)
        assert names == ["0", "1", "2"]
        assert np.array_equal(found, x)
    Image.new("RGB", (30, 20)).save(tmp_path / "large.png")
    names, found = read_inputs(tmp_path / "large.png", grey)
    assert (names, found.shape) == (["large.png"], (1, 1, 8, 8))
    assert read_inputs(tmp_path, grey)[0] == ["large.png"]
    (tmp_path / "t.csv").write_text("income,age,label\n7,1,?\n8,2,?\n")
    assert read_inputs(tmp_path / "t.csv", table)[1].tolist() == [[1, 7], [2, 8]]
    (tmp_path / "u.csv").write_text("income\n7\n")
    (tmp_path / "v.csv").write_text("income,age,height\n7,1,2\n")
    (tmp_path / "x.txt").write_text("x")
    for name, says in (
        ("u.csv", "u.csv lacks the column 'age', which is one of the features: age, income"),
        ("v.csv", "v.csv has the column 'height', which is not among the features"),
        ("x.npy", r"x.npy: the model takes numbers of shape \(samples, 2\), not uint8"),
        ("x.txt", "x.txt is none of .npz, .npy"),
        ("gone.npz", "there is no file"),
    ):
        with pytest.raises(DataError, match=says):
            read_inputs(tmp_path / name, table)
