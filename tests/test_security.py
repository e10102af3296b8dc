"""Certificates and trust."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import aqueduct
from aqueduct.errors import TLSError
from aqueduct.security import (
    ServerTLS,
    Trust,
    check_path,
    describe_fault,
    dev_directory,
    dev_names,
    dev_tls,
    dev_trust,
    fingerprint,
    make_authority,
    make_certificate,
    make_client_certificate,
    pin,
    read_client_certificate,
    tls,
    trust,
)
from aqueduct.transport.quic.configuration import server_settings
from aqueduct.transport.settings import QuicSettings


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "dev"
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(directory))
    return directory


def names_of(certificate: bytes) -> list[str]:
    leaf = x509.load_pem_x509_certificate(certificate)
    extension = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in extension.value]


def test_a_development_certificate_is_created_once(own_directory: Path) -> None:
    first = dev_tls()
    assert dev_tls() == first
    assert dev_trust() == dev_trust()
    assert sorted(path.name for path in own_directory.iterdir()) == [
        "authority.key",
        "authority.pem",
        "server.key",
        "server.pem",
    ]


def test_a_development_certificate_names_this_machine() -> None:
    assert {"localhost", "127.0.0.1", "::1"} <= set(dev_names())
    assert set(names_of(dev_tls().certificate)) == set(dev_names())


def test_only_the_owner_can_read_keys(own_directory: Path) -> None:
    dev_tls()
    assert stat.S_IMODE(own_directory.stat().st_mode) == 0o700
    for path in own_directory.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_certificate_that_expires_soon_is_renewed(own_directory: Path) -> None:
    before = dev_tls()
    authority = tls(own_directory / "authority.pem", own_directory / "authority.key")
    old = make_certificate(dev_names(), authority, days=5)
    (own_directory / "server.pem").write_bytes(old.certificate)
    (own_directory / "server.key").write_bytes(old.key)
    after = dev_tls()
    assert after.certificate not in (before.certificate, old.certificate)
    leaf = x509.load_pem_x509_certificate(after.certificate)
    assert leaf.not_valid_after_utc > datetime.datetime.now(datetime.UTC) + datetime.timedelta(30)


@pytest.mark.parametrize("name", ["server.pem", "server.key", "authority.pem", "authority.key"])
def test_a_missing_or_damaged_file_is_created_again(own_directory: Path, name: str) -> None:
    dev_tls()
    (own_directory / name).unlink()
    server_settings(dev_tls(), QuicSettings())
    if name.endswith(".pem"):
        (own_directory / name).write_bytes(b"garbage")
        server_settings(dev_tls(), QuicSettings())


def test_a_new_authority_renews_the_server_certificate(own_directory: Path) -> None:
    before = dev_tls()
    (own_directory / "authority.pem").unlink()
    authority = dev_trust().authorities
    after = dev_tls()
    assert authority is not None
    assert after.certificate != before.certificate
    assert authority in after.certificate


def test_a_key_that_does_not_match_its_certificate_is_replaced(own_directory: Path) -> None:
    dev_tls()
    (own_directory / "server.key").write_bytes(make_certificate(["a.test"]).key)
    server_settings(dev_tls(), QuicSettings())


def test_concurrent_starts_create_one_certificate(own_directory: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: dev_tls(), range(8)))
        trusted = list(pool.map(lambda _: dev_trust(), range(8)))
    assert len(set(made)) == len(set(trusted)) == 1


def test_the_development_directory_is_in_the_cache_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AQUEDUCT_DEV_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert dev_directory() == tmp_path / "aqueduct" / "dev"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert dev_directory() == Path.home() / ".cache" / "aqueduct" / "dev"


def test_an_unreadable_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(TLSError, match=r"certificate file .*nothing\.pem"):
        tls(tmp_path / "nothing.pem", tmp_path / "nothing.key")
    with pytest.raises(TLSError, match=r"authority file .*nothing\.pem"):
        trust(tmp_path / "nothing.pem")


def test_a_certificate_and_key_from_files(tmp_path: Path) -> None:
    made = make_certificate(["a.test"])
    (tmp_path / "c.pem").write_bytes(made.certificate)
    (tmp_path / "k.pem").write_bytes(made.key)
    assert tls(tmp_path / "c.pem", str(tmp_path / "k.pem")) == made


def test_an_invalid_certificate_or_key_is_a_tls_error() -> None:
    one, two = make_certificate(["a.test"]), make_certificate(["b.test"])
    for bad in (
        ServerTLS(b"garbage", one.key),
        ServerTLS(one.certificate, b"garbage"),
        ServerTLS(one.certificate, two.key),
        ServerTLS(one.certificate, one.certificate),
        ServerTLS(one.key, one.key),
        ServerTLS(b"", b""),
    ):
        with pytest.raises(TLSError, match="the server's"):
            server_settings(bad, QuicSettings())


def test_a_pin_is_64_hexadecimal_digits() -> None:
    made = make_certificate(["a.test"])
    assert pin(made.fingerprint) == pin(made.fingerprint.upper())
    assert pin(":".join(["ab"] * 32)) == pin("ab" * 32)
    for bad in ("", "ab", "zz" * 32, "ab" * 33):
        with pytest.raises(TLSError, match="fingerprint"):
            pin(bad)


def test_the_repr_does_not_contain_the_key() -> None:
    made = make_certificate(["a.test"])
    assert made.fingerprint in repr(made)
    assert "PRIVATE" not in repr(made)
    assert fingerprint(made.certificate) == made.fingerprint


def test_names_and_addresses_are_distinguished() -> None:
    names = ["a.test", "10.0.0.1", "::1"]
    assert names_of(make_certificate(names).certificate) == names


def test_an_authority_can_sign_and_a_certificate_cannot() -> None:
    authority = x509.load_pem_x509_certificate(make_authority("us").certificate)
    leaf = x509.load_pem_x509_certificate(make_certificate(["a.test"]).certificate)
    basic = x509.BasicConstraints
    assert authority.extensions.get_extension_for_class(basic).value.ca
    assert not leaf.extensions.get_extension_for_class(basic).value.ca


def test_trust_without_arguments_uses_the_system() -> None:
    assert trust() == Trust()
    authority = make_authority("another").certificate
    assert trust(authority).authorities == authority


def test_only_an_authority_can_be_a_trust_anchor() -> None:
    with pytest.raises(TLSError, match="not PEM"):
        trust(b"PEM")
    leaf = make_certificate(["localhost"], make_authority("another"))
    first = x509.load_pem_x509_certificate(leaf.certificate)
    alone = first.public_bytes(serialization.Encoding.PEM)
    with pytest.raises(TLSError, match=rf"pin\('{leaf.fingerprint}'\)"):
        trust(alone)


# -- whose certificates ---------------------------------------------------------------------------


def test_a_directory_that_others_can_write_to_is_rejected(own_directory: Path) -> None:
    dev_tls()
    own_directory.chmod(0o770)
    for use in (dev_trust, dev_tls):
        with pytest.raises(TLSError, match=r"other users can write to .*chmod go-w"):
            use()
    own_directory.chmod(0o700)
    dev_trust()


@pytest.mark.parametrize("name", ["authority.pem", "authority.key", "server.pem", "server.key"])
def test_a_file_that_others_can_write_to_is_rejected(own_directory: Path, name: str) -> None:
    dev_tls()
    (own_directory / name).chmod(0o646)
    with pytest.raises(TLSError, match=rf"other users can write to .*{name}"):
        dev_trust()


@pytest.mark.parametrize("name", ["", "authority.pem", "authority.key"])
def test_files_of_another_user_are_rejected(
    own_directory: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev_tls()
    foreign = own_directory / name
    if os.geteuid() == 0:
        os.chown(foreign, 12_345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    for use in (dev_trust, dev_tls):
        with pytest.raises(TLSError, match=r"belongs to user .*AQUEDUCT_DEV_DIR"):
            use()


def test_an_authority_planted_before_the_first_use_is_rejected(own_directory: Path) -> None:
    planted = make_authority("mallory")
    own_directory.mkdir(mode=0o777)
    own_directory.chmod(0o777)
    (own_directory / "authority.pem").write_bytes(planted.certificate)
    (own_directory / "authority.key").write_bytes(planted.key)
    with pytest.raises(TLSError, match="not trusted"):
        dev_trust()


# -- how long a path may be -----------------------------------------------------------------------


def authority(name: str, length: int | None, issuer: ServerTLS | None = None) -> ServerTLS:
    """An authority that allows so many others below it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer, issued_by = key, subject
    if issuer is not None:
        loaded = serialization.load_pem_private_key(issuer.key, None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer, issued_by = loaded, x509.load_pem_x509_certificate(issuer.certificate).subject
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issued_by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(True, length), critical=True)
        .sign(signer, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    chain = issuer.certificate if issuer is not None else b""
    return ServerTLS(made.public_bytes(serialization.Encoding.PEM) + chain, private)


def path_of(*lengths: int | None) -> tuple[ServerTLS, bytes]:
    """A server's certificate below authorities with these path lengths, and the first of them."""
    root = last = authority("root", lengths[0])
    for depth, length in enumerate(lengths[1:]):
        last = authority(f"below {depth}", length, last)
    return make_certificate(["localhost", "127.0.0.1"], last), root.certificate


PATHS = [
    ((0,), True),
    ((0, None), False),
    ((0, 0), False),
    ((1, 0), True),
    ((1, None, None), False),
    ((2, 1, 0), True),
    ((None, None, None), True),
    ((None, 0, None), False),
]


@pytest.mark.parametrize(("lengths", "fits"), PATHS)
def test_a_chain_may_be_as_long_as_every_authority_in_it_allows(
    lengths: tuple[int | None, ...], fits: bool
) -> None:
    shown, root = path_of(*lengths)
    leaf, *sent = (
        one.public_bytes(serialization.Encoding.DER)
        for one in x509.load_pem_x509_certificates(shown.certificate)
    )
    for order in (sent, sent[::-1], [*sent, *sent]):
        if fits:
            check_path(leaf, order, root)
        else:
            with pytest.raises(TLSError, match="pathlen"):
                check_path(leaf, order, root)


@pytest.mark.parametrize(("lengths", "fits"), [((0, None), False), ((1, 0), True)])
@pytest.mark.parametrize("known", [False, True], ids=["sent", "known"])
async def test_a_client_enforces_the_path_length_of_the_authority_it_trusts(
    lengths: tuple[int | None, ...], fits: bool, known: bool
) -> None:
    shown, root = path_of(*lengths)
    # Also if it knows the ones between, and the server does not send them.
    leaf, *above = x509.load_pem_x509_certificates(shown.certificate)
    if known:
        root = b"".join(one.public_bytes(serialization.Encoding.PEM) for one in above)
        shown = ServerTLS(leaf.public_bytes(serialization.Encoding.PEM), shown.key)
    async with asyncio.timeout(60), aqueduct.serve("127.0.0.1:0", tls=shown) as server:
        connecting = aqueduct.connect(server.address, trust=trust(root), timeout=30)
        if fits:
            async with connecting as connection:
                assert connection.is_open
        else:
            with pytest.raises(TLSError, match="pathlen"):
                await connecting
        assert len(server.connections) == fits


@pytest.mark.parametrize(
    ("names", "host", "is_for_host"),
    [
        (["example.test"], "EXAMPLE.test.", True),
        (["*.example.test"], "a.example.test", True),
        (["*.example.test"], "a.b.example.test", False),
        (["*.example.test"], "example.test", False),
        (["::1"], "0:0:0:0:0:0:0:1", True),
        (["127.0.0.1"], "127.0.0.2", False),
        (["localhost"], "127.0.0.1", False),
    ],
)
def test_a_fault_names_the_names_of_a_certificate(
    names: list[str], host: str, is_for_host: bool
) -> None:
    fault = describe_fault(der(make_certificate(names)), host)
    says = f"the certificate is for {names[0]}, and not for {host}"
    assert fault == ("" if is_for_host else says)


def test_a_fault_shows_some_names_only_and_names_an_expired_certificate() -> None:
    many = make_certificate([f"host-{number}.test" for number in range(8)])
    assert "host-4.test and 3 more" in describe_fault(der(many), "localhost")
    old = make_certificate(["localhost"], days=-0.5)
    assert "the certificate expired on 20" in describe_fault(der(old), "localhost")
    assert describe_fault(b"no certificate", "localhost") == ""


def der(pair: ServerTLS) -> bytes:
    loaded = x509.load_pem_x509_certificate(pair.certificate)
    return loaded.public_bytes(serialization.Encoding.DER)


def der_of(pair: ServerTLS) -> bytes:
    leaf = x509.load_pem_x509_certificate(pair.certificate)
    return leaf.public_bytes(serialization.Encoding.DER)


def test_a_client_certificate_has_a_name_and_is_for_no_host() -> None:
    made = make_client_certificate("ann of sales", make_authority("clients"))
    found = read_client_certificate(der_of(made))
    assert (found.name, found.names) == ("ann of sales", ())
    assert found.fingerprint == fingerprint(made.certificate)
    assert "is for no name" in describe_fault(found.der, "ann of sales")
    assert "der" not in repr(found)


def test_a_client_certificate_tells_all_kinds_of_names() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName(
        [
            x509.UniformResourceIdentifier("spiffe://example.org/ann"),
            x509.DNSName("ann.example.org"),
            x509.RFC822Name("ann@example.org"),
            x509.IPAddress(ipaddress.ip_address("192.0.2.7")),
        ]
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=True)
        .sign(key, hashes.SHA256())
    )
    found = read_client_certificate(made.public_bytes(serialization.Encoding.DER))
    assert found.name == ""
    assert found.names == (
        "ann.example.org",
        "192.0.2.7",
        "ann@example.org",
        "spiffe://example.org/ann",
    )


@pytest.mark.parametrize("der", [b"", b"\x30\x00", bytes(100)])
def test_a_malformed_client_certificate_is_a_tls_error(der: bytes) -> None:
    with pytest.raises(TLSError, match="the client's certificate is malformed"):
        read_client_certificate(der)
