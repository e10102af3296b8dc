"""The processes that the orchestrator starts."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from aqueduct.security import make_authority, make_certificate
from bench.builds import ROOT, SOURCES
from bench.network.peer import HOST, Json, Setting

ANSWER_SECONDS = 120.0
END_SECONDS = 5.0


class Failed(Exception):
    """A process ended early, or did not answer."""


class Process:
    """A server or a client, in its own session so that its child processes can be ended."""

    def __init__(
        self,
        role: str,
        peer: str,
        setting: Setting,
        log: IO[bytes],
        sources: Path,
        worker: str = "bench.network.worker",
    ) -> None:
        self.role = role
        words = [sys.executable, "-m", worker, role, peer]
        self._process = subprocess.Popen(
            [*words, json.dumps(asdict(setting))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(sources)},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._read = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, **order: object) -> None:
        try:
            self._stdin.write(json.dumps(order).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            raise Failed(f"the {self.role} ended early") from None

    def read(self) -> Json:
        deadline = time.monotonic() + ANSWER_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise Failed(f"the {self.role} did not answer in {ANSWER_SECONDS:.0f} s")
                chunk = os.read(self._stdout.fileno(), 1 << 20)
                if not chunk:
                    raise Failed(f"the {self.role} ended early")
                self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        answer: Json = json.loads(line)
        return answer

    def end(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        with contextlib.suppress(Failed):
            self.write(order="quit")
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stdout.close()


@contextlib.contextmanager
def started(
    peer: str, setting: Setting, log_path: Path, sources: Path = SOURCES
) -> Iterator[tuple[Process, Process, Json]]:
    """A connected server and client, and the server's remark about itself."""
    with log_path.open("wb") as log, contextlib.ExitStack() as stack:
        server = Process("server", peer, setting, log, sources)
        stack.callback(server.end)
        client = Process("client", peer, setting, log, sources)
        stack.callback(client.end)
        info = server.read()["info"]
        client.write(info=info)
        client.read()
        yield server, client, info


def write_certificate(directory: Path, options: Json, hosts: Sequence[str] = ()) -> Setting:
    """Write the certificate of all servers, which every client verifies; return the paths."""
    authority = make_authority("Aqueduct benchmark", days=2)
    made = make_certificate(["localhost", HOST, *hosts], authority, days=1)
    files = [directory / name for name in ("authority.pem", "server.pem", "server.key")]
    for file, content in zip(
        files, (authority.certificate, made.certificate, made.key), strict=True
    ):
        file.write_bytes(content)
    trusted, shown, key = map(str, files)
    return Setting(trusted, shown, key, options)
