"""Certificates and trust: what each side presents, and which certificates the other one accepts.

Verification cannot be turned off. For development, `dev_tls` creates a private certificate
authority in the user's cache directory, which only `dev_trust` trusts. Independent of transports.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import ipaddress
import os
import socket
import ssl
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aqueduct.errors import TLSError

TRUST_HINT = (
    "check the server's certificate, its name and what trust= says; "
    "for development use tls=dev_tls() and trust=dev_trust()"
)
"""The hint of a `TLSError` about a certificate that is not trusted."""

CERTIFICATE_NEEDED = "the server asks for a certificate of the client"
"""The reason of an `Unauthenticated` of a client without a certificate."""
CERTIFICATE_HINT = "present one: connect(…, certificate=tls('client.pem', 'client.key'))"
"""The hint of that error."""

_DAY = datetime.timedelta(days=1)
_AUTHORITY_DAYS = 3_650
_CERTIFICATE_DAYS = 365
_RENEW_DAYS = 14
_SHOWN_NAMES = 5
"""The most names of a certificate that an error shows."""
_SHOWN_NAME = 60
"""The most characters of each."""
_LONGEST_PATH = 8
"""The most intermediate certificates between a server's certificate and a trusted authority."""
_MAX_STEPS = 64
"""The most signatures verified in the search for a path: the server chooses the chain."""


@dataclass(frozen=True)
class ServerTLS:
    """What one side presents: its certificate with the chain, and the private key, both PEM.

    Every server has one, and the clients of servers that ask for it: see docs/authentication.md.
    """

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"ServerTLS(fingerprint={self.fingerprint!r})"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, as `pin` takes it."""
        return fingerprint(self.certificate)


@dataclass(frozen=True)
class Trust:
    """What a client trusts: PEM authorities, one pinned certificate, or those of the system."""

    authorities: bytes | None = None
    pinned: str | None = None


@dataclass(frozen=True)
class ClientCertificate:
    """The certificate of a client, which the server has verified."""

    name: str
    """The common name of its subject; "" if it has none."""
    names: tuple[str, ...]
    """Its alternative names: host names, addresses, e-mail addresses and URIs."""
    fingerprint: str
    """SHA-256 of the certificate, as 64 hexadecimal digits."""
    der: bytes = field(repr=False)
    """The certificate itself."""


def tls(certificate: str | os.PathLike[str], key: str | os.PathLike[str]) -> ServerTLS:
    """Read the certificate chain and the private key of a server or a client from PEM files."""
    return ServerTLS(_read(certificate, "certificate"), _read(key, "key"))


def trust(ca: str | os.PathLike[str] | bytes | None = None) -> Trust:
    """Return trust in the authorities of a PEM file, or of the system without an argument."""
    if ca is None:
        return Trust()
    authorities = ca if isinstance(ca, bytes) else _read(ca, "authority")
    try:
        found = x509.load_pem_x509_certificates(authorities)
    except ValueError as error:
        raise TLSError(f"the authority to trust is not PEM: {error}") from None
    if not any(map(_is_authority, found)):
        raise TLSError(
            "this is a server's certificate and not an authority",
            hint=f"trust it by its fingerprint: pin({fingerprint(authorities)!r})",
        )
    return Trust(authorities=authorities)


def pin(fingerprint: str) -> Trust:
    """Return trust in the certificate with this SHA-256 fingerprint, whatever its name."""
    digits = fingerprint.replace(":", "").lower()
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise TLSError(f"not a SHA-256 fingerprint of 64 hexadecimal digits: {fingerprint!r}")
    return Trust(pinned=digits)


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 fingerprint of the first certificate in a PEM text."""
    leaf = x509.load_pem_x509_certificate(certificate)
    return hashlib.sha256(leaf.public_bytes(serialization.Encoding.DER)).hexdigest()


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return certificate.version is x509.Version.v1  # version 1 has no extensions
    return constraints.value.ca


def check(pair: ServerTLS, whose: str = "the server's") -> None:
    """Raise `TLSError` unless the certificate and the key are valid PEM and belong together."""
    try:
        chain = x509.load_pem_x509_certificates(pair.certificate)
    except ValueError as error:
        raise TLSError(f"{whose} certificate is not PEM: {error}") from None
    try:
        key = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise TLSError(f"{whose} key is not PEM without a password: {error}") from None
    if chain[0].public_key() != key.public_key():
        raise TLSError(f"{whose} key does not belong to its certificate")


def check_client_trust(clients: Trust) -> None:
    """Raise `TLSError` unless a server can verify its clients by this."""
    if clients.authorities is None:
        what = "the authorities of the system" if clients.pinned is None else "a fingerprint"
        raise TLSError(
            f"a server cannot verify its clients by {what}",
            hint="name the authority that signs their certificates: "
            "client_trust=trust('authority.pem')",
        )


def read_client_certificate(der: bytes) -> ClientCertificate:
    """Return what a verified certificate says; raise `TLSError` if it cannot be read."""
    try:
        loaded = x509.load_der_x509_certificate(der)
        common = loaded.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        extensions = loaded.extensions
    except ValueError as error:
        raise TLSError(f"the client's certificate is malformed: {error}") from None
    names: list[str] = []
    with contextlib.suppress(x509.ExtensionNotFound):
        found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += found.get_values_for_type(x509.DNSName)
        names += map(str, found.get_values_for_type(x509.IPAddress))
        names += found.get_values_for_type(x509.RFC822Name)
        names += found.get_values_for_type(x509.UniformResourceIdentifier)
    return ClientCertificate(
        name=next((one.value for one in common if isinstance(one.value, str)), ""),
        names=tuple(names),
        fingerprint=hashlib.sha256(der).hexdigest(),
        der=der,
    )


def check_path(leaf: bytes, sent: Sequence[bytes], authorities: bytes) -> None:
    """Raise `TLSError` if the path from a certificate to an authority is longer than allowed.

    Certificates are DER, authorities PEM. OpenSSL checks the path length of RFC 5280 itself; this
    is for TLS libraries that use only the name and the key of a trusted authority.
    """
    known = _authorities(authorities)
    trusted = [one for one in known.values() if one.subject == one.issuer]
    others = [one for one in known.values() if one.subject != one.issuer]
    others += [x509.load_der_x509_certificate(one) for one in sent if one not in known]
    if not others:
        return  # no authority limits the path length
    start = x509.load_der_x509_certificate(leaf)
    if not _Paths(trusted, others).reaches(start, 0, ()):
        raise TLSError(
            "there are more certificates between the server's and the trusted authority than the "
            "authority allows (pathlen)",
            hint="have the authority sign the certificate directly, or trust another authority",
        )


def describe_fault(der: bytes, host: str) -> str:
    """Return why a server's certificate is not valid for a host now; "" if dates and names are.

    Certificates are the peer's: names are limited, and control characters escaped.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
    except ValueError:
        return ""
    now = datetime.datetime.now(datetime.UTC)
    if now > certificate.not_valid_after_utc:
        return f"the certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return (
            f"the certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, "
            "and the clock here is before that"
        )
    names = _names(certificate)
    if any(_matches(name, host) for name in names):
        return ""
    shown = ", ".join(name[:_SHOWN_NAME] for name in names[:_SHOWN_NAMES])
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"the certificate is for {ascii(shown)[1:-1] or 'no name'}{more}, and not for {host}"


def _names(certificate: x509.Certificate) -> list[str]:
    """Return the host names and addresses that a certificate is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    addresses = found.get_values_for_type(x509.IPAddress)
    return [*found.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _matches(name: str, host: str) -> bool:
    name, host = name.lower(), host.lower().rstrip(".")
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    except ValueError:
        if name.startswith("*."):
            return name[1:] == host[host.find(".") :] and "." in host
        return name == host


class _Paths:
    """A search for a path from a certificate to an authority that allows its length."""

    def __init__(self, trusted: list[x509.Certificate], others: list[x509.Certificate]) -> None:
        self._trusted = trusted
        self._others = others
        self._steps = 0

    def reaches(
        self, last: x509.Certificate, between: int, path: tuple[x509.Certificate, ...]
    ) -> bool:
        """Return whether a trusted authority, ``between`` issuers away, issued ``last``."""
        if any(_allows(one, between) and self._issued(last, one) for one in self._trusted):
            return True
        if len(path) >= _LONGEST_PATH:
            return False
        for one in self._others:
            if one in path or not _allows(one, between) or not self._issued(last, one):
                continue
            # RFC 5280: self-issued certificates do not count.
            count = between if one.subject == one.issuer else between + 1
            if self.reaches(one, count, (*path, one)):
                return True
        return False

    def _issued(self, one: x509.Certificate, issuer: x509.Certificate) -> bool:
        if one.issuer != issuer.subject or self._steps >= _MAX_STEPS:
            return False
        self._steps += 1
        try:
            one.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def _allows(authority: x509.Certificate, between: int) -> bool:
    try:
        found = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return authority.version is x509.Version.v1
    return found.ca and (found.path_length is None or between <= found.path_length)


@lru_cache(maxsize=8)
def _authorities(pem: bytes) -> dict[bytes, x509.Certificate]:
    return {
        one.public_bytes(serialization.Encoding.DER): one
        for one in x509.load_pem_x509_certificates(pem)
    }


def dev_tls() -> ServerTLS:
    """Return a development certificate for this machine; created once, and renewed in time."""
    directory = dev_directory()
    certificate, key = directory / "server.pem", directory / "server.key"
    with _locked(directory):
        authority = _dev_authority(directory)
        if not _is_fresh(certificate, key, authority):
            made = make_certificate(dev_names(), authority)
            _write(key, made.key, secret=True)
            _write(certificate, made.certificate)
        return ServerTLS(_read(certificate, "certificate"), _read(key, "key"))


def dev_trust() -> Trust:
    """Return trust in the certificates that `dev_tls` creates for this user on this machine."""
    directory = dev_directory()
    with _locked(directory):
        return Trust(authorities=_dev_authority(directory).certificate)


def dev_directory() -> Path:
    """Return the directory of development certificates; AQUEDUCT_DEV_DIR overrides it."""
    chosen = os.environ.get("AQUEDUCT_DEV_DIR")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "aqueduct" / "dev"


def dev_names() -> list[str]:
    """Return the host names and addresses of the development certificate."""
    names = ["localhost", "127.0.0.1", "::1"]
    host = socket.gethostname()
    return names if host in names else [*names, host]


def make_certificate(
    names: Sequence[str], authority: ServerTLS | None = None, days: float = _CERTIFICATE_DAYS
) -> ServerTLS:
    """Create a certificate for host names and addresses, signed by an authority or by itself."""
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    return _issue(names[0], [alternatives], ExtendedKeyUsageOID.SERVER_AUTH, authority, days)


def make_client_certificate(
    name: str, authority: ServerTLS, days: float = _CERTIFICATE_DAYS
) -> ServerTLS:
    """Create a certificate for a client, signed by an authority.

    It is for no host, so that no client can present it as a server.
    """
    return _issue(name, [], ExtendedKeyUsageOID.CLIENT_AUTH, authority, days)


def _issue(
    name: str,
    extensions: Sequence[x509.ExtensionType],
    usage: x509.ObjectIdentifier,
    authority: ServerTLS | None,
    days: float,
) -> ServerTLS:
    """Create a certificate with a new key, signed by an authority or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, key.public_key(), days)
    for extension in (*extensions, x509.ExtendedKeyUsage([usage])):
        builder = builder.add_extension(extension, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    if authority is None:
        return _sealed(builder.issuer_name(subject).sign(key, hashes.SHA256()), key)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    signed = builder.issuer_name(issuer.subject).sign(signer, hashes.SHA256())
    made = _sealed(signed, key)
    return ServerTLS(made.certificate + authority.certificate, made.key)


def make_authority(name: str, days: int = _AUTHORITY_DAYS) -> ServerTLS:
    """Create a certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, key.public_key(), days).issuer_name(subject)
    builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
    builder = builder.add_extension(
        x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True
    )
    return _sealed(builder.sign(key, hashes.SHA256()), key)


def system_authorities() -> str | None:
    """Return the file with the authorities of this system, if OpenSSL knows one."""
    return ssl.get_default_verify_paths().cafile


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a lock on the directory, so that concurrent processes create one authority."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(directory, os.O_RDONLY)
        try:
            _refuse_foreign(os.fstat(lock), directory)
            fcntl.flock(lock, fcntl.LOCK_EX)
            for path in directory.iterdir():
                _refuse_foreign(path.stat(), path)
            yield
        finally:
            os.close(lock)
    except OSError as error:
        raise TLSError(
            f"cannot keep development certificates in {directory}: {error.strerror}",
            hint="set AQUEDUCT_DEV_DIR to a directory that can be written",
        ) from None


def _refuse_foreign(found: os.stat_result, path: Path) -> None:
    """Raise `TLSError` if another user owns or can change a certificate file or its directory."""
    hint = "set AQUEDUCT_DEV_DIR to a directory of your own, or remove this path"
    if found.st_uid not in (os.geteuid(), 0):
        raise TLSError(
            f"development certificates are not trusted: {path} belongs to user {found.st_uid}, "
            f"not to the current user {os.geteuid()}",
            hint=hint,
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise TLSError(
            f"development certificates are not trusted: other users can write to {path}",
            hint=f"run `chmod go-w {path}` if its contents are unchanged, or {hint}",
        )


def _dev_authority(directory: Path) -> ServerTLS:
    certificate, key = directory / "authority.pem", directory / "authority.key"
    if not _is_fresh(certificate, key):
        made = make_authority(f"Aqueduct development on {socket.gethostname()}")
        _write(key, made.key, secret=True)
        _write(certificate, made.certificate)
    return ServerTLS(_read(certificate, "certificate"), _read(key, "key"))


def _builder(
    subject: x509.Name, public: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + days * _DAY)
    )


def _sealed(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> ServerTLS:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return ServerTLS(certificate.public_bytes(serialization.Encoding.PEM), private)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _is_fresh(certificate: Path, key: Path, authority: ServerTLS | None = None) -> bool:
    """Return whether files hold a pair of that authority that does not expire soon."""
    try:
        pair = ServerTLS(certificate.read_bytes(), key.read_bytes())
        check(pair)
        loaded = x509.load_pem_x509_certificate(pair.certificate)
        if authority is not None:
            issuer = x509.load_pem_x509_certificate(authority.certificate)
            loaded.verify_directly_issued_by(issuer)
    except (OSError, TLSError, ValueError, TypeError, InvalidSignature):
        return False
    now = datetime.datetime.now(datetime.UTC)
    return loaded.not_valid_after_utc - now > _RENEW_DAYS * _DAY


def _read(path: str | os.PathLike[str], what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TLSError(f"cannot read the {what} file {os.fspath(path)}: {error.strerror}") from None


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Write a file atomically, so that a killed process leaves no partial file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, 0o600 if secret else 0o644)
        file.write(data)
    os.replace(temporary, path)
