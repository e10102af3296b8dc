"""TLS 1.3 without a socket: whom to believe, what to show, and one end of a connection.

A client always verifies: the chain and the name where it trusts authorities, the certificate itself
where it has a fingerprint (IPC-TCP-4).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from typing import cast

from aqueduct.errors import TLSError
from aqueduct.security import ServerTLS, Trust, check

SLICE = 128 * 1024
"""What goes through TLS at once: its buffers grow to the most that they ever held, and stay."""

_NOT_ITS_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_NOT_ITS_TIME = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_VERSIONS = ("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "UNSUPPORTED_VERSION")


def server_context(pair: ServerTLS) -> ssl.SSLContext:
    """For the side that shows a certificate."""
    check(pair)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # connections live long, and nobody resumes one
    with _readable(pair.key.rstrip() + b"\n" + pair.certificate) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise TLSError(f"TLS cannot use the server's certificate: {error.reason}") from None
    return context


def client_context(trust: Trust) -> ssl.SSLContext:
    """For the side that verifies. With a fingerprint, `TlsSession` does it after the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if trust.pinned is not None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif trust.authorities is not None:
        try:
            context.load_verify_locations(cadata=trust.authorities.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise TLSError(f"the authority to trust is not PEM: {error}") from None
    else:
        context.load_default_certs()
    return context


class TlsSession:
    """One end of a TLS connection: ciphertext in, plaintext out, and the other way round."""

    __slots__ = ("_incoming", "_outgoing", "_pinned", "_tls", "established")

    def __init__(
        self, context: ssl.SSLContext, host: str | None = None, pinned: str | None = None
    ) -> None:
        """``host``: whom a client wants to reach; a server has none."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=host is None, server_hostname=host
        )
        self._pinned = pinned
        self.established = False
        """Whether the peer is who it should be, so that PDUs may go."""

    def handle_ciphertext(self, data: bytes | memoryview) -> None:
        """Bytes came from the network: no more than `SLICE`, before what they say is read."""
        self._incoming.write(data)

    def poll_ciphertext(self) -> bytes:
        """What has to go out to the network."""
        return self._outgoing.read()

    def shake_hands(self) -> bool:
        """Go on with the handshake; whether it is done. Raises `TLSError` or ``ssl.SSLError``."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        if self._pinned is not None:
            shown = self._tls.getpeercert(binary_form=True) or b""
            found = hashlib.sha256(shown).hexdigest()
            if found != self._pinned:
                raise TLSError(
                    f"its certificate has the fingerprint {found} and not the pinned one; if the "
                    "server has a new certificate, pin that fingerprint"
                )
        self.established = True
        return True

    def read_into(self, room: memoryview) -> tuple[int, bool]:
        """Fill a buffer with plaintext; how much there was, and whether the peer has closed."""
        at = 0
        try:
            while at < len(room):
                # Typeshed knows neither what it returns with a buffer nor that a view is one.
                view = cast(bytearray, room[at:])
                got = cast(int, self._tls.read(len(view), view))
                if not got:
                    return at, True
                at += got
        except ssl.SSLWantReadError:
            pass
        return at, False

    def encrypt(self, data: bytes) -> list[bytes]:
        """The ciphertext of all this, in pieces."""
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
        """Tell the peer that nothing more will come."""
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()


def refusal(name: str, error: Exception) -> TLSError:
    """Why a peer is not talked to, and what to do about it."""
    if isinstance(error, TLSError):
        return TLSError(f"{name} is not trusted: {error}")
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"the certificate of {name} is not trusted: {error.verify_message}"
        if error.verify_code in _NOT_ITS_NAME:
            return TLSError(f"{what} Use a name that it holds, or trust it by its fingerprint.")
        if error.verify_code in _NOT_ITS_TIME:
            return TLSError(f"{what}; the server needs a new one, or a clock is wrong")
        return TLSError(f"{what}; trust the authority that signed it, or its fingerprint")
    reason = str(getattr(error, "reason", None) or error)
    if any(version in reason for version in _VERSIONS):
        return TLSError(f"{name} does not speak TLS 1.3 ({reason}); both sides need it")
    return TLSError(f"no TLS with {name} ({reason}); is it an endpoint with a tls:// address?")


@contextlib.contextmanager
def _readable(text: bytes) -> Iterator[str]:
    """A path to read something secret from: OpenSSL takes nothing else.

    In memory where the system can; else in a file for the owner alone, gone right after.
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
