"""Options that several commands share."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from aqueduct.cli.running import fail
from aqueduct.errors import TLSError
from aqueduct.security import ServerTLS, Trust, dev_tls, dev_trust, pin, tls, trust

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--cert", metavar="FILE", help="PEM certificate (default: the development certificate)."
    ),
]
Key = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="PEM key of the certificate.")
]
ClientAuthority = Annotated[
    Path | None,
    typer.Option(
        "--client-ca",
        metavar="FILE",
        help="Accept only clients with a certificate of this PEM authority; listens on TCP only.",
    ),
]
OwnCertificate = Annotated[
    Path | None,
    typer.Option(
        "--cert", metavar="FILE", help="PEM certificate of this client, if the server asks for one."
    ),
]
Authority = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="Trust this PEM authority (default: the development authority).",
    ),
]
Pin = Annotated[
    str | None,
    typer.Option("--pin", metavar="SHA256", help="Trust the certificate with this fingerprint."),
]
System = Annotated[bool, typer.Option("--system", help="Trust the authorities of this system.")]
TraceDirectory = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="DIR",
        file_okay=False,
        help="Record a trace as Parquet files here; needs pyarrow.",
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        min=0,
        metavar="SECONDS",
        help="How long open connections may finish after Ctrl-C.",
    ),
]

Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        "-l",
        metavar="HOST:PORT",
        help="Address to bind; port 0 selects a free port.",
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT", help="One message per argument (default: lines of standard input)."
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        "-f",
        exists=True,
        dir_okay=False,
        readable=True,
        help="Send a file; repeatable.",
    ),
]
Whole = Annotated[bool, typer.Option("--whole", help="Send all of standard input as one message.")]
Count = Annotated[
    int,
    typer.Option(
        "--count", "-n", min=0, help="Exit after this many messages; 0 runs until Ctrl-C."
    ),
]
Raw = Annotated[bool, typer.Option("--raw", help="Print payloads unescaped, one per line.")]

INGEST_ADDRESS = "127.0.0.1:4434"
"""The default address of an ingest server."""
_TOKEN = "AQUEDUCT_TOKEN"


def with_port(address: str) -> str:
    """Add the default port of ingest, which differs from that of channels, if there is none."""
    has_port = ":" in address.rpartition("]")[2] if "]" in address else ":" in address
    return address if has_port else f"{address}:{INGEST_ADDRESS.rpartition(':')[2]}"


IngestAddress = Annotated[
    str,
    typer.Option(
        "--server", "-s", metavar="HOST:PORT", callback=with_port, help="The ingest server."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar=_TOKEN,
        metavar="TOKEN",
        help=f"Access token; ${_TOKEN} hides it from other users.",
    ),
]


def server_tls(certificate: Path | None, key: Path | None) -> ServerTLS:
    """Return the certificate that the options select; for a server, there is a default."""
    if (certificate is None) != (key is None):
        raise typer.BadParameter("give both --cert and --key, or none of them")
    try:
        return dev_tls() if certificate is None or key is None else tls(certificate, key)
    except TLSError as error:
        fail(str(error))


def trust_in_clients(authority: Path | None) -> Trust | None:
    """Return the authority of clients that a server accepts; None if it accepts all."""
    try:
        return None if authority is None else trust(authority)
    except TLSError as error:
        fail(str(error))


def own_certificate(certificate: Path | None, key: Path | None) -> ServerTLS | None:
    """Return the certificate that a client presents, if any."""
    return None if certificate is None and key is None else server_tls(certificate, key)


def client_trust(authority: Path | None, fingerprint: str | None, system: bool) -> Trust:
    """Return the trust that the options select for a client."""
    if sum((authority is not None, fingerprint is not None, system)) > 1:
        raise typer.BadParameter("--ca, --pin and --system exclude each other")
    try:
        if authority is not None:
            return trust(authority)
        if fingerprint is not None:
            return pin(fingerprint)
        return trust() if system else dev_trust()
    except TLSError as error:
        fail(str(error))


def trace_directory(directory: Path | None) -> Path | None:
    """Return the directory for a trace; exit if pyarrow is missing."""
    if directory is not None:
        require("trace", "--trace")
    return directory


_EXTRAS = {
    "ingest": ("pyarrow",),
    "spark": ("pyspark", "pyarrow", "pandas"),
    "trace": ("pyarrow",),
}
"""The packages that each extra installs, and without which its commands cannot work."""


def require(extra: str, what: str) -> None:
    """Exit with a message about ``what`` needs unless the packages of an extra are installed."""
    for package in _EXTRAS[extra]:
        if importlib.util.find_spec(package) is None:
            fail(f"{what} needs {package}: pip install 'aqueduct-channels[{extra}]'")


def parse_headers(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Split headers of the form ``name=value``."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"not name=value: {text!r}", param_hint="--header")
        pairs.append((name, value))
    return pairs


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile of the values."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def pluralize(count: int, what: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
