"""Payloads that are bytes: the contract of a codec, and no copies."""

from __future__ import annotations

from typing import Any

import pytest

from aqueduct import EncodeError
from aqueduct.codec import Codec, RawCodec
from tests.codec.contract import CodecContract


class TestRawCodec(CodecContract):
    content_type = "application/octet-stream"
    samples = ((bytes, b""), (bytes, b"\x00\xff"), (bytes, bytes(100_000)))
    rejected = ((bytes, "text"), (bytes, 7), (bytes, None))
    malformed = ()

    def make(self, kind: Any) -> Codec[Any]:
        return RawCodec()


def test_bytes_are_not_copied_and_buffers_are() -> None:
    codec = RawCodec()
    value = b"kept"
    assert codec.encode(value)[0] is value
    changing = bytearray(b"abc")
    payload, _ = codec.encode(changing)
    changing[:] = b"xyz"
    assert payload == b"abc"
    assert codec.encode(memoryview(b"def")[::2])[0] == b"df"


def test_the_error_for_another_type_says_how_to_declare_it() -> None:
    with pytest.raises(EncodeError, match=r"cannot send str; give it a type"):
        RawCodec().encode("text")
