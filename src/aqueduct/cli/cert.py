"""``aqueduct cert``: creates certificates, and shows their contents."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography import x509

from aqueduct.cli import options
from aqueduct.cli.running import fail, notes
from aqueduct.errors import TLSError
from aqueduct.security import (
    ServerTLS,
    dev_directory,
    dev_tls,
    dev_trust,
    fingerprint,
    make_authority,
    make_certificate,
    make_client_certificate,
    tls,
)

_LONGEST_NAME = 64
"""The most characters of a common name (RFC 5280)."""

_Directory = Annotated[
    Path, typer.Option("--out", "-o", file_okay=False, help="Directory for the files.")
]
_Days = Annotated[int, typer.Option("--days", min=1, max=3650, help="Validity in days.")]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]

app = typer.Typer(
    help="Create certificates and show their fingerprints.\n\n"
    "Example: aqueduct cert make example.org --out certs",
    no_args_is_help=True,
)


@app.command()
def make(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Host names and addresses.")],
    out: _Directory = Path(),
    days: _Days = 365,
    force: _Force = False,
    as_json: options.Json = False,
) -> None:
    """Create a server certificate, signed by an authority in the same directory.

    Creates the authority if there is none. Servers use server.pem and server.key; clients trust
    authority.pem. Keep authority.key secret.

    Example: aqueduct cert make example.org 192.0.2.7 --out certs --days 90
    """
    certificate, key = out / "server.pem", out / "server.key"
    _make(certificate, key, lambda: make_certificate(names, _authority(out), days), force)
    _print(certificate, certificate.read_bytes(), as_json)
    if not as_json:
        notes.print(
            f"serve with   --cert {certificate} --key {key}\n"
            f"connect with --ca {out / 'authority.pem'}",
            markup=False,
        )


@app.command()
def client(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who the client is.")],
    out: _Directory = Path(),
    days: _Days = 365,
    force: _Force = False,
    as_json: options.Json = False,
) -> None:
    """Create a client certificate, signed by an authority in the same directory.

    Creates the authority if there is none. Servers accept the clients of authority.pem, and find
    the name in the certificate; the client uses NAME.pem and NAME.key.

    Example: aqueduct cert client ann --out certs
    """
    if name != Path(name).name or name in ("authority", "server") or len(name) > _LONGEST_NAME:
        raise typer.BadParameter("not the name of a file, or one of the others, or too long")
    certificate, key = out / f"{name}.pem", out / f"{name}.key"
    _make(certificate, key, lambda: make_client_certificate(name, _authority(out), days), force)
    _print(certificate, certificate.read_bytes(), as_json)
    if not as_json:
        notes.print(
            f"serve with   --client-ca {out / 'authority.pem'}\n"
            f"connect with --cert {certificate} --key {key}",
            markup=False,
        )


@app.command()
def show(
    file: Annotated[
        Path | None, typer.Argument(help="PEM certificate (default: the development certificate).")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show the names, the expiry date and the fingerprint of a certificate.

    Example: aqueduct cert show certs/server.pem
    """
    try:
        if file is None:
            dev_trust()
            dev_tls()
            file = dev_directory() / "server.pem"
        pem = file.read_bytes()
        _print(file, pem, as_json)
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}")
    except TLSError as error:
        fail(str(error))
    except ValueError:
        fail(f"there is no PEM certificate in {file}")


def describe(pem: bytes) -> dict[str, Any]:
    """Return names, issuer, expiry and fingerprint of the first certificate in a PEM text."""
    loaded = x509.load_pem_x509_certificate(pem)
    try:
        extension = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = [str(one.value) for one in extension.value]
    except x509.ExtensionNotFound:
        names = []
    left = loaded.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return {
        "subject": loaded.subject.rfc4514_string(),
        "names": names,
        "issuer": loaded.issuer.rfc4514_string(),
        "until": loaded.not_valid_after_utc.date().isoformat(),
        "days_left": left.days,
        "fingerprint": fingerprint(pem),
    }


def _make(certificate: Path, key: Path, make: Callable[[], ServerTLS], force: bool) -> None:
    """Create a certificate and write its files."""
    if not force and (certificate.exists() or key.exists()):
        fail(f"{certificate} exists already; overwrite it with --force")
    try:
        certificate.parent.mkdir(parents=True, exist_ok=True)
        made = make()
        _write(key, made.key, secret=True)
        _write(certificate, made.certificate)
    except OSError as error:
        fail(f"cannot write {error.filename}: {error.strerror}")
    except (TLSError, ValueError) as error:
        fail(str(error))


def _print(path: Path, pem: bytes, as_json: bool) -> None:
    found = {"file": str(path), **describe(pem)}
    if as_json:
        print(json.dumps(found))
        return
    print(f"file         {path}")
    print(f"subject      {found['subject']}")
    print(f"names        {', '.join(found['names']) or 'none'}")
    print(f"issuer       {found['issuer']}")
    print(f"until        {found['until']} ({found['days_left']} days)")
    print(f"fingerprint  {found['fingerprint']}")


def _authority(out: Path) -> ServerTLS:
    certificate, key = out / "authority.pem", out / "authority.key"
    if not certificate.exists() and not key.exists():
        made = make_authority("Aqueduct authority")
        _write(key, made.key, secret=True)
        _write(certificate, made.certificate)
    return tls(certificate, key)


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    path.touch(mode=0o600 if secret else 0o644)
    path.chmod(0o600 if secret else 0o644)
    path.write_bytes(data)
