"""The certificate of all servers, which every client verifies."""

from pathlib import Path

from aqueduct.security import make_authority, make_certificate
from bench.network.peer import HOST, Json, Setting


def write(directory: Path, options: Json) -> Setting:
    """Make an authority and a certificate for this machine."""
    authority = make_authority("Aqueduct benchmark", days=2)
    made = make_certificate(["localhost", HOST], authority, days=1)
    files = [directory / name for name in ("authority.pem", "server.pem", "server.key")]
    for file, content in zip(
        files, (authority.certificate, made.certificate, made.key), strict=True
    ):
        file.write_bytes(content)
    trusted, shown, key = map(str, files)
    return Setting(trusted, shown, key, options)
