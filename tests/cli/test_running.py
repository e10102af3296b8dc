"""Commands write their output completely, and explain errors."""

from __future__ import annotations

import io
import os
import sys
import threading

import pytest

from aqueduct.cli import running
from aqueduct.errors import ConnectTimeout, TLSError, Unauthenticated
from aqueduct.security import TRUST_HINT

LONG = bytes(range(256)) * 4_096


class Piecemeal(io.RawIOBase):
    """Takes a few bytes at a time, as a pipe does when a signal comes."""

    def __init__(self) -> None:
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        self.taken += bytes(data[:1_000])
        return len(data[:1_000])


def test_a_partial_write_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Piecemeal()
    text = io.TextIOWrapper(stream, encoding="utf-8", write_through=True)  # type: ignore[type-var]
    monkeypatch.setattr(sys, "stdout", text)
    running.write(LONG)
    running.write_line("ö" * 2_000)
    running.write_object(long="x" * 2_000)
    shown = "ö" * 2_000 + '\n{"long": "' + "x" * 2_000 + '"}\n'
    assert stream.taken == LONG + shown.encode()


@pytest.mark.parametrize("buffering", [0, -1])
def test_a_non_blocking_pipe_is_waited_for(monkeypatch: pytest.MonkeyPatch, buffering: int) -> None:
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    got: list[bytes] = []

    def read() -> None:
        with open(readable, "rb") as stream:
            got.append(stream.read())

    reader = threading.Timer(0.05, read)
    reader.start()
    with open(writable, "wb", buffering) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", write_through=True)
        monkeypatch.setattr(sys, "stdout", text)
        running.write(LONG)
        running.write(b"the end")
    reader.join(60)
    assert got == [LONG + b"the end"]


def test_a_hint_names_the_option_instead_of_the_argument() -> None:
    untrusted = TLSError("no trust", hint=TRUST_HINT)
    assert running.explain(untrusted).startswith("no trust; check the server's certificate")
    assert "--ca FILE" in running.explain(untrusted)
    assert "trust=" not in running.explain(untrusted)
    assert running.explain(TLSError("no directory", hint="make it")) == "no directory; make it"


def test_a_missing_token_is_explained_with_the_option() -> None:
    assert "--token" in running.explain(Unauthenticated("who are you?"))


def test_an_error_without_a_message_is_reported_by_its_class() -> None:
    assert running.explain(ConnectTimeout()) == "ConnectTimeout"
    assert running.explain(OSError()) == "OSError"
