"""Processes that are forked from one that has imported the package, which takes most of a start.

A `Forked` process behaves like one of `subprocess.Popen`, and an `AsyncForked` one like one of
`asyncio.subprocess`: it has its own pid, environment, pipes, signals and exit. `server` starts the
process to fork from, once for each process that runs tests.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parent.parent
IMPORTED = (
    "aqueduct.blocking",
    "aqueduct.cli.main",
    "aqueduct.ingest.blocking",
    "aqueduct.ingest.server.server",
    "aqueduct.testing",
)
"""What tests run imports these, directly or not."""
_LENGTH = 4


@cache
def server() -> socket.socket:
    """Start the process to fork from; return the connection for requests."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, *IMPORTED],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])},
            cwd=ROOT,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class Forked(subprocess.Popen[str]):
    """A running module, as ``python -m``, with pipes for text."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: bool = True,
    ) -> None:
        """Without ``stdin``, the process reads the end of input at once."""
        self.args = [module, *arguments]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        input_, self.stdin = _pipe("w") if stdin else (os.open(os.devnull, os.O_RDONLY), None)
        output, self.stdout = _pipe("r")
        errors, self.stderr = _pipe("r")
        self.pid, self._status = _fork(module, arguments, environment, (input_, output, errors))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                if not select.select([self._status], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                self.returncode = _code(self._status)
            return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def communicate(
        self, input: str | None = None, timeout: float | None = None
    ) -> tuple[str, str]:
        found = ["", ""]

        def read(index: int, file: IO[str]) -> None:
            with file:
                found[index] = file.read()

        files = [file for file in (self.stdout, self.stderr) if file is not None]
        threads = [
            threading.Thread(target=read, args=each, daemon=True)
            for each in enumerate(files)
            if not each[1].closed
        ]
        for thread in threads:
            thread.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError, ValueError):
                if input:
                    self.stdin.write(input)
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        self.wait(timeout)
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return found[0], found[1]


class AsyncForked:
    """A running module, as ``python -m``, with pipes for bytes on an event loop."""

    def __init__(self) -> None:
        self.pid: int
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._ended: asyncio.Future[int]
        self._status: socket.socket

    @classmethod
    async def start(
        cls,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        stderr: bool = True,
        limit: int = 2**16,
    ) -> Self:
        """Start a module; without ``stderr``, its errors are printed."""
        self = cls()
        loop = asyncio.get_running_loop()
        input_, ours = os.pipe()
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport, _ = await loop.connect_write_pipe(lambda: protocol, _file(ours, "wb"))
        self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        self.stdout, output = await self._read(limit)
        if stderr:
            self.stderr, errors = await self._read(limit)
        else:
            errors = os.dup(2)
        self.pid, self._status = _fork(module, arguments, environment, (input_, output, errors))
        self._ended = loop.create_future()
        loop.add_reader(self._status, self._handle_exit)
        return self

    async def _read(self, limit: int) -> tuple[asyncio.StreamReader, int]:
        """Return a reader of a new pipe, and the other end."""
        loop = asyncio.get_running_loop()
        ours, theirs = os.pipe()
        reader = asyncio.StreamReader(limit)
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), _file(ours, "rb")
        )
        return reader, theirs

    def _handle_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._status)
        self._ended.set_result(_code(self._status))
        if self.stdin is not None:
            self.stdin.close()

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the exit was noticed."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _fork(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    files: tuple[int, int, int],
) -> tuple[int, socket.socket]:
    """Start a process with these standard files; return its pid, and what reports its exit."""
    ours, theirs = socket.socketpair()
    request = {
        "module": module,
        "arguments": list(arguments),
        "environment": dict(environment),
        "directory": os.getcwd(),
    }
    content = json.dumps(request).encode()
    with theirs:
        socket.send_fds(
            server(), [len(content).to_bytes(_LENGTH, "big")], [*files, theirs.fileno()]
        )
        server().sendall(content)
    for file in files:
        os.close(file)
    return int.from_bytes(_exactly(ours, _LENGTH), "big"), ours


def _file(number: int, mode: str) -> IO[bytes]:
    """Return an unbuffered file, for an event loop."""
    return os.fdopen(number, mode, 0)


def _code(status: socket.socket) -> int:
    """Return the exit code of a process that has ended."""
    with status:
        return int.from_bytes(_exactly(status, _LENGTH), "big", signed=True)


def _pipe(mode: str) -> tuple[int, IO[str]]:
    """Return the other process's end of a pipe, and ours."""
    reading, writing = os.pipe()
    if mode == "r":
        return writing, open(reading, encoding="utf-8")
    return reading, open(writing, "w", encoding="utf-8")


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Read exactly this many bytes; raise `EOFError` if there are fewer."""
    content = b""
    while len(content) < size:
        more = connection.recv(size - len(content))
        if not more:
            raise EOFError
        content += more
    return content


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork a process for each request; return in that process, with what it has to run."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        length, files, _, _ = socket.recv_fds(requests, _LENGTH, 4)
        if not length:
            sys.exit()
        length += _exactly(requests, _LENGTH - len(length))
        request: dict[str, Any] = json.loads(_exactly(requests, int.from_bytes(length, "big")))
        # One process waits for the exit, the other one is as requested.
        if os.fork() == 0:
            requests.close()
            child = os.fork()
            if child == 0:
                for number, file in enumerate(files[:3]):
                    os.dup2(file, number)
                for file in files:
                    os.close(file)
                return request
            for file in files[:3]:
                os.close(file)
            with socket.socket(fileno=files[3]) as status:
                status.sendall(child.to_bytes(_LENGTH, "big"))
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    status.sendall(code.to_bytes(_LENGTH, "big", signed=True))
            os._exit(0)
        for file in files:
            os.close(file)


def main(*modules: str) -> None:
    for module in modules:
        # A module may need a package that is not installed.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    # What reads the arguments is imported when they are read.
    sys.argv = ["aqueduct", "topics", "--help"]
    with contextlib.suppress(SystemExit):
        runpy.run_module("aqueduct", run_name="__main__")
    # Else each process would copy the pages of all these objects, and free them when it exits.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = serve(socket.socket(fileno=os.dup(0)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    # The interpreter reads this variable when it starts.
    if os.environ.get("PYTHONWARNINGS") == "default":
        warnings.simplefilter("default")
    sys.path[0] = request["directory"]
    sys.argv[1:] = request["arguments"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
