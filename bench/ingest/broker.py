"""The durability of a nats-server: whether it can sync before it acknowledges."""

import subprocess
import tempfile
from pathlib import Path


def version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return said.stdout.strip().removeprefix("nats-server: v")


def can_sync_always(program: str) -> bool:
    """Return whether it can sync before it acknowledges: since 2.10."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "nats.conf"
        path.write_text(f'jetstream {{ store_dir: "{directory}", sync_interval: always }}\n')
        tried = subprocess.run([program, "-t", "-c", str(path)], capture_output=True, check=False)
    return tried.returncode == 0


def remark(its_version: str, syncs: bool) -> str:
    if syncs:
        return f"nats-server {its_version} with sync_interval: always"
    return (
        f"nats-server {its_version} cannot sync before it acknowledges (sync_interval came with "
        "2.10), so acknowledged records are not durable, and its figures are for less work"
    )
