"""TLS 1.3 over TCP, without a socket: the contexts of both sides, and one end of a connection.

A client always verifies: the chain and the name where it trusts authorities, the certificate itself
where it has a fingerprint (IPC-TCP-4). A server with authorities for its clients verifies them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from typing import cast

from aqueduct.errors import TLSError
from aqueduct.security import ServerTLS, Trust, check, check_client_trust

SLICE = 128 * 1024
"""Bytes that go through TLS at once: its buffers grow to their maximum and never shrink."""
_CONTEXTS = 64
"""Contexts of clients that are kept: parsing an authority takes as long as a fifth of a handshake.
"""


def server_context(
    pair: ServerTLS, protocol: str = "", clients: Trust | None = None
) -> ssl.SSLContext:
    """Return the context of a server; ``protocol`` is for ALPN.

    With ``clients``, each client has to present a certificate of one of these authorities.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # connections live long, and none is resumed
    if protocol:
        context.set_alpn_protocols([protocol])
    _present(context, pair, "the server's")
    if clients is not None:
        check_client_trust(clients)
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, clients.authorities or b"")
    return context


def client_context(
    trust: Trust, protocol: str = "", certificate: ServerTLS | None = None
) -> ssl.SSLContext:
    """Return the context of a client; ``protocol`` is for ALPN.

    With a fingerprint, `TlsSession` verifies after the handshake. ``certificate`` is for servers
    that ask for one. Connections share a context, except for one with a private key or with the
    system's authorities, which may change.
    """
    if certificate is None and (trust.pinned is not None or trust.authorities is not None):
        return _shared_context(trust, protocol)
    context = _client_context(trust, protocol)
    if certificate is not None:
        _present(context, certificate, "the client's")
    return context


def _client_context(trust: Trust, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if protocol:
        context.set_alpn_protocols([protocol])
    if trust.pinned is not None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif trust.authorities is not None:
        _trust(context, trust.authorities)
    else:
        context.load_default_certs()
    return context


_shared_context = lru_cache(maxsize=_CONTEXTS)(_client_context)


def _present(context: ssl.SSLContext, pair: ServerTLS, whose: str) -> None:
    """Have a context present a certificate."""
    check(pair, whose)
    with _readable(pair.key.rstrip() + b"\n" + pair.certificate) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise TLSError(f"TLS cannot use {whose} certificate: {error.reason}") from None


def _trust(context: ssl.SSLContext, authorities: bytes) -> None:
    """Have a context accept certificates of authorities."""
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise TLSError(f"the authority to trust is not PEM: {error}") from None


class TlsSession:
    """One end of a TLS connection: it decrypts input and encrypts output."""

    __slots__ = ("_incoming", "_outgoing", "_pinned", "_tls", "established")

    def __init__(
        self, context: ssl.SSLContext, host: str | None = None, pinned: str | None = None
    ) -> None:
        """``host``: the name that a client verifies; a server has none."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host
        )
        self._pinned = pinned
        self.established = False
        """Whether the peer is verified, so that PDUs can be sent."""

    @property
    def protocol(self) -> str | None:
        """The application protocol that both sides have chosen (ALPN)."""
        return self._tls.selected_alpn_protocol()

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate of the peer in DER, if it was asked for one."""
        return self._tls.getpeercert(binary_form=True)

    def handle_ciphertext(self, data: bytes | memoryview) -> None:
        """Add bytes from the network: at most `SLICE` between two reads."""
        self._incoming.write(data)

    def poll_ciphertext(self) -> bytes:
        """Return the bytes to send to the network."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def shake_hands(self) -> bool:
        """Continue the handshake; return whether it is done. Raise `TLSError` or `ssl.SSLError`."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        if self._pinned is not None:
            found = hashlib.sha256(self.peer_certificate or b"").hexdigest()
            if found != self._pinned:
                raise TLSError(
                    f"its certificate has the fingerprint {found} and not the pinned one; if the "
                    "server has a new certificate, pin that fingerprint"
                )
        self.established = True
        return True

    def read_into(self, room: memoryview) -> tuple[int, bool]:
        """Fill a buffer with plaintext; return its length, and whether the peer has closed."""
        at, size = 0, len(room)
        tls, incoming = self._tls, self._incoming
        try:
            while at < size:
                # Typeshed lacks the return type with a buffer, and does not accept a view as one.
                view = cast(bytearray, room[at:] if at else room)
                got = cast(int, tls.read(size - at, view))
                if not got:
                    return at, True
                at += got
                if not incoming.pending and not tls.pending():
                    break  # another read would raise, which costs as much as to decrypt
        except ssl.SSLWantReadError:
            pass
        return at, False

    def encrypt(self, data: bytes) -> list[bytes]:
        """Return the ciphertext of data, in pieces."""
        if len(data) <= SLICE:
            self._write(data)
            return [self._outgoing.read()]
        pieces = []
        view = memoryview(data)
        for start in range(0, len(data), SLICE):
            self._write(view[start : start + SLICE])
            pieces.append(self._outgoing.read())
        return pieces

    def _write(self, data: bytes | memoryview) -> None:
        written = self._tls.write(data)
        while written < len(data):
            written += self._tls.write(memoryview(data)[written:])

    def close(self) -> None:
        """Send close_notify."""
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()


@contextlib.contextmanager
def _readable(text: bytes) -> Iterator[str]:
    """Yield a path with secret contents, since OpenSSL reads keys from paths only.

    The file is in memory where the system allows it, else a temporary one with mode 0600.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        handle = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(handle, text)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        yield file.name
