import sys
from pathlib import Path

import pytest
from support import finished, make_task

import fedexperts.methods
from fedexperts.config import Settings
from fedexperts.errors import MethodError
from fedexperts.methods import method_class, registry

NEW_METHOD = '''
from fedexperts.methods.base import Method, Owner

class FedHead(Method):
    """Shares only the head."""
    name = "fed-head"
    owners = {"extractor": Owner.PRIVATE, "head": Owner.SHARED}
'''


def test_the_methods_are_there() -> None:
    assert {"fedavg", "fedmoe", "standalone"} <= set(registry())
    assert [kind.name for kind in registry().values() if not kind.__doc__ or kind.source == "unpublished"] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class Mine(Method): ...", "methods/mine.py cannot be imported: NameError"),
        (NEW_METHOD.replace("fed-head", "fedavg"), "two methods are called 'fedavg': in fedexperts.methods.fedavg and"),
    ],
)
def test_a_file_that_cannot_be_a_method_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.setattr(fedexperts.methods, "__path__", [*fedexperts.methods.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "fedexperts.methods.mine", raising=False)
    registry.cache_clear()
    try:
        with pytest.raises(MethodError, match=says):
            registry()
    finally:
        registry.cache_clear()


def test_no_option_is_named_like_a_setting() -> None:
    """It could never be set: the setting takes the value."""
    for kind in registry().values():
        assert not set(kind.Options.model_fields) & set(Settings.model_fields)


def test_an_unknown_method_suggests_the_nearest() -> None:
    with pytest.raises(MethodError, match="unknown method 'fedavgg'; did you mean 'fedavg'"):
        method_class("fedavgg")


def test_a_new_file_is_a_new_method(tmp_path: Path, cli) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "fed_head.py").write_text(NEW_METHOD)
    fedexperts.methods.__path__.append(str(tmp_path))
    registry.cache_clear()
    try:
        assert "fed-head" in registry()
        assert "fed-head" in cli("methods")[1]
        simulation = finished("fed-head", make_task(), rounds=1)
        assert set(simulation.server) == {"head.weight", "head.bias"}
    finally:
        fedexperts.methods.__path__.remove(str(tmp_path))
        registry.cache_clear()
