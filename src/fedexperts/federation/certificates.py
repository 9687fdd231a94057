"""Certificates of a small consortium: an authority of its own, and one for the server and each site."""

import datetime as dt
import os
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedexperts.errors import FederationError

AUTHORITY, CERTIFICATE, KEY = "authority.crt", "own.crt", "own.key"
"""In the folder of the server and of each site: whom it believes, who it is, and what proves it."""
AUTHORITY_KEY = "authority.key"
AUTHORITY_DAYS, DAYS = 3650, 365


def make_authority(folder: Path, name: str) -> None:
    """The consortium's own; its key signs newcomers and nothing else, so it can lie in a safe place."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"{name} authority")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        _begun(subject, subject, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(folder / AUTHORITY_KEY, key)
    _write(folder / AUTHORITY, certificate)


def issue(authority: Path, folder: Path, name: str, days: float = DAYS, also: Sequence[str] = ()) -> None:
    """A certificate for a member, in its folder. It is known by its name, wherever it is: addresses may change.

    `also`: addresses that it is known by to others than us, who have only those (Flower).
    """
    if not (authority / AUTHORITY_KEY).exists():
        raise FederationError(f"{authority / AUTHORITY_KEY} is not there: put it back for as long as this takes")
    folder.mkdir(parents=True, exist_ok=True)
    signer = serialization.load_pem_private_key((authority / AUTHORITY_KEY).read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate((authority / AUTHORITY).read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _begun(_name(name), issuer.subject, key, days)
        .add_extension(x509.SubjectAlternativeName([_known_by(word) for word in (name, *also)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    _write_key(folder / KEY, key)
    _write(folder / CERTIFICATE, certificate)
    _write(folder / AUTHORITY, issuer)


def renew(authority: Path, folder: Path, name: str) -> None:
    """A new certificate and key for a member; for the addresses of the old one, if that is here."""
    also: list[str] = []
    if (folder / CERTIFICATE).exists():
        old = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        also = [str(known.value) for known in names if known.value != name]
    issue(authority, folder, name, also=also)


def expires(folder: Path) -> dt.datetime:
    return x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes()).not_valid_after_utc


def _known_by(word: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(word.strip("[]")))
    except ValueError:
        return x509.DNSName(word)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=2))  # clocks differ; an expired one can be made for a test
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _write(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Only its owner may read it, from the first moment on."""
    path.unlink(missing_ok=True)
    raw = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(raw)
