"""Sites that come and go between runs."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from fedexperts.errors import FederationError, FedExpertsError
from fedexperts.federation.board import STATUS, Board
from fedexperts.federation.certificates import AUTHORITY_KEY, CERTIFICATE, expires
from fedexperts.federation.hub import SERVER, SERVICE, Hub
from fedexperts.federation.members import admit, dismiss
from fedexperts.federation.places import AUTHORITY, README, SiteSettings, new, read_server
from fedexperts.federation.runs import queue
from fedexperts.federation.wire import Channel

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def consortium(tmp_path: Path) -> Path:
    folder = tmp_path / "consortium"
    new(folder, ("a", "b", "c"), "federation.example.org", 9440)
    return folder


def test_a_site_is_added_with_its_certificate_folder_and_name_on_all_lists(consortium: Path) -> None:
    assert admit(consortium, "d") == []
    assert read_server(consortium).sites == ("a", "b", "c", "d")
    assert SiteSettings.of(consortium / "b").peers == ("a", "c", "d")
    added = SiteSettings.of(consortium / "d")
    assert (added.name, added.peers) == ("d", ("a", "b", "c"))
    assert (added.server, added.address) == ("federation.example.org:9440", "federation.example.org:9444")
    assert expires(consortium / "d") >= expires(consortium / "a")
    assert "fedexperts site" in (consortium / README).read_text()
    assert "/d --data" in (consortium / README).read_text()


def test_a_site_that_is_removed_is_on_no_list_and_keeps_its_folder(consortium: Path) -> None:
    state = consortium / "b" / "state"
    state.mkdir()
    assert dismiss(consortium, "b") == []
    assert read_server(consortium).sites == ("a", "c")
    assert [SiteSettings.of(consortium / name).peers for name in ("a", "c")] == [("c",), ("a",)]
    assert state.exists()
    assert "/b --data" not in (consortium / README).read_text()
    with pytest.raises(FederationError, match="move it away"):
        admit(consortium, "b")


def test_what_an_operator_wrote_stays(consortium: Path) -> None:
    path = consortium / "a" / "site.toml"
    mine = path.read_text().replace('"b",', "").replace("listen", "# ours\nlisten") + '\n[data]\npeers = ["x"]\n'
    path.write_text(mine)
    admit(consortium, "d", host="d.example.org")
    assert SiteSettings.of(consortium / "a").peers == ("c", "d")  # b it does not deal with
    assert SiteSettings.of(consortium / "a").data == {"peers": ["x"]}
    assert "# ours\n" in path.read_text()
    assert SiteSettings.of(consortium / "d").address == "d.example.org:9444"
    odd = path.read_text().replace('peers = ["c", "d"]', '"peers" = ["c", "d"]')
    path.write_text(odd)
    with pytest.raises(FederationError, match="by hand"):
        dismiss(consortium, "d")
    assert read_server(consortium).sites == ("a", "b", "c", "d")  # all lists or none


def test_the_server_hears_who_is_added_and_refuses_who_is_removed(consortium: Path) -> None:
    def said_to_d() -> str:
        """To an answer that nobody asked for."""
        hub = Hub(consortium / SERVER, "localhost:0", read_server(consortium).sites)
        try:
            with pytest.raises(FederationError) as refused:
                Channel(consortium / "d", f"localhost:{hub.port}", SERVER).call(f"/{SERVICE}/Answer", b"0" * 40, 5)
        finally:
            hub.close()
        return str(refused.value)

    admit(consortium, "d")
    assert "to nothing that was asked" in said_to_d()
    dismiss(consortium, "d")
    assert "'d' is not on the list" in said_to_d()


def test_sites_whose_folders_are_at_home_are_named(consortium: Path, tmp_path: Path, cli: Cli) -> None:
    (consortium / "b").rename(tmp_path / "b")
    code, out, _ = cli("federation", "add", consortium, "--site", "d")
    assert code == 0
    assert 'at b: add "d" to `peers`' in out
    code, out, _ = cli("federation", "remove", consortium, "--site", "a")
    assert code == 0
    assert 'at b: take "a" off `peers`' in out
    assert read_server(consortium).sites == ("b", "c", "d")


@pytest.mark.parametrize("name", ["a", "server", "../d", "D"])
def test_names_that_are_taken_or_none_are_refused(name: str, consortium: Path) -> None:
    before = sorted(consortium.parent.rglob("*"))
    with pytest.raises(FedExpertsError):
        admit(consortium, name)
    assert sorted(consortium.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--sites", "a,B"), "a site's name is of small letters, digits and '-', not 'B'"),
        (("--sites", "a,a"), "sites need names of their own"),
        (("--sites", "a,b", "--host", "my host"), "'my host' is not the name or the address of a machine"),
        (("--sites", "a,b", "--port", 65534), "there is no port 65536"),
    ],
)
def test_a_federation_that_cannot_be_is_not_begun(
    words: tuple[object, ...], says: str, tmp_path: Path, cli: Cli
) -> None:
    code, _, err = cli("federation", "new", tmp_path / "new", *words)
    assert code == 2
    assert says in err
    assert not (tmp_path / "new").exists()


def test_a_new_certificate_is_good_for_the_same_addresses(consortium: Path, cli: Cli) -> None:
    """Which Flower knows the server by."""
    before = (consortium / SERVER / CERTIFICATE).read_bytes()
    assert cli("federation", "renew", consortium, "--member", SERVER)[0] == 0
    after = (consortium / SERVER / CERTIFICATE).read_bytes()
    assert before != after
    old, new_one = (
        x509.load_pem_x509_certificate(raw).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        for raw in (before, after)
    )
    assert old == new_one
    assert "federation.example.org" in new_one.get_values_for_type(x509.DNSName)


def test_a_member_whose_folder_is_at_home_gets_a_new_certificate_too(
    consortium: Path, tmp_path: Path, cli: Cli
) -> None:
    (consortium / "b").rename(tmp_path / "b")
    code, out, _ = cli("federation", "renew", consortium, "--member", "b")
    assert code == 0
    assert "b needs own.crt, own.key, authority.crt in its folder" in out
    assert expires(consortium / "b") >= expires(tmp_path / "b")
    code, _, err = cli("federation", "renew", consortium, "--member", "../b")
    assert code == 2
    assert "has no member '../b', but server, a, b, c" in err


def test_status_says_whether_a_server_is_there(consortium: Path, cli: Cli) -> None:
    assert "has not been started yet" in cli("federation", "status", consortium)[1]
    Board(consortium / SERVER / STATUS).note(seen={})
    assert "the server is not running" in cli("federation", "status", consortium)[1]
    with open(consortium / SERVER / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is not running" not in cli("federation", "status", consortium)[1]


def test_what_cannot_be_is_refused_and_changes_nothing(consortium: Path) -> None:
    with pytest.raises(FederationError, match="no site 'd', but a, b, c"):
        dismiss(consortium, "d")
    (consortium / AUTHORITY / AUTHORITY_KEY).unlink()
    with pytest.raises(FederationError, match="put it back"):
        admit(consortium, "d")
    assert not (consortium / "d").exists()
    dismiss(consortium, "b")
    dismiss(consortium, "a")
    with pytest.raises(FederationError, match="the last site"):
        dismiss(consortium, "c")
    queue(consortium, "fedavg", {}, "first")
    with pytest.raises(FederationError, match="first is not over"):
        admit(consortium, "d")
