"""Options that several commands have, and what they mean."""

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

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Certificate = Annotated[
    Path | None,
    typer.Option("--cert", metavar="FILE", help="PEM certificate; else the development one."),
]
Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Its PEM key.")]
Authority = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", help="Trust this PEM authority; else the development one."
    ),
]
Pin = Annotated[
    str | None,
    typer.Option("--pin", metavar="SHA256", help="Trust the certificate with this fingerprint."),
]
System = Annotated[bool, typer.Option("--system", help="Trust the authorities of this system.")]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="DIR",
        file_okay=False,
        help="Record what happens as Parquet files here; needs pyarrow.",
    ),
]
Grace = Annotated[
    float, typer.Option("--grace", min=0, metavar="SECONDS", help="How long Ctrl-C drains.")
]

INGEST = "127.0.0.1:4434"
"""Where an ingest server listens unless told otherwise."""
_TOKEN = "AQUEDUCT_TOKEN"


def with_port(address: str) -> str:
    """Without a port it is that of ingest, and not the one that channels have in general."""
    has_port = ":" in address.rpartition("]")[2] if "]" in address else ":" in address
    return address if has_port else f"{address}:{INGEST.rpartition(':')[2]}"


IngestAddress = Annotated[
    str,
    typer.Option(
        "--server", "-s", metavar="HOST:PORT", callback=with_port, help="The ingest server."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar=_TOKEN, metavar="TOKEN", help=f"Who you are; better as ${_TOKEN}."
    ),
]


def chosen_tls(certificate: Path | None, key: Path | None) -> ServerTLS:
    """What a server shows."""
    if (certificate is None) != (key is None):
        raise typer.BadParameter("give both --cert and --key, or none of them")
    try:
        return dev_tls() if certificate is None or key is None else tls(certificate, key)
    except TLSError as error:
        fail(str(error))


def chosen_trust(authority: Path | None, fingerprint: str | None, system: bool) -> Trust:
    """Whom a client believes."""
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


def chosen_trace(directory: Path | None) -> Path | None:
    """Where to record, if that is possible."""
    if directory is not None and importlib.util.find_spec("pyarrow") is None:
        fail("--trace needs pyarrow; pip install pyarrow")
    return directory


def need_pyarrow() -> None:
    """End with a sentence unless ingest can work."""
    if importlib.util.find_spec("pyarrow") is None:
        fail("ingest needs pyarrow: pip install 'aqueduct-channels[ingest]'")


def parse_headers(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Headers given as ``name=value``."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"not name=value: {text!r}", param_hint="--header")
        pairs.append((name, value))
    return pairs


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent of all do not exceed."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def counted(count: int, what: str) -> str:
    """So many of something, in words."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
