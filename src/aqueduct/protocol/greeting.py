"""Connection headers, and the limits that each side states in them."""

from __future__ import annotations

from dataclasses import fields

from aqueduct.errors import Incomplete, LocalProtocolError, RemoteProtocolError
from aqueduct.protocol.config import Limits
from aqueduct.settings import unchecked
from aqueduct.wire.primitives import (
    HeaderPairs,
    decode_headers,
    decode_varint,
    encode_headers,
    encode_varint,
    headers_size,
)

RESERVED = b"aqueduct-"
LIMITS = b"aqueduct-limits"

_NAMES = {field.name.replace("_", "-").encode(): field.name for field in fields(Limits)}


def with_limits(headers: HeaderPairs, limits: Limits, max_headers: int) -> HeaderPairs:
    """Return the application's headers with our limits added (AQ-LIMIT-1).

    Raise LocalProtocolError for a reserved name, or if the sum exceeds ``max_headers`` bytes.
    """
    for name, _ in headers:
        if name.startswith(RESERVED):
            raise LocalProtocolError(
                f"AQ-CONN-6: header names in {RESERVED!r} are reserved: {name!r}"
            )
    stated = tuple((name, encode_varint(getattr(limits, key))) for name, key in _NAMES.items())
    contents = encode_headers(stated)
    # The value is header data without its length prefix, since the header has one.
    start = decode_varint(contents, 0, len(contents))[1]
    everything = (*headers, (LIMITS, contents[start:]))
    if headers_size(everything) > max_headers:
        raise LocalProtocolError(
            f"AQ-LIMIT-3: {headers_size(everything)} bytes of connection headers; "
            f"the peer takes at most {max_headers}"
        )
    return everything


def split_limits(headers: HeaderPairs, initial: Limits) -> tuple[HeaderPairs, Limits]:
    """Return the peer's unreserved headers, and the limits it stated (AQ-LIMIT-2)."""
    limits = initial
    for name, value in headers:
        if name == LIMITS:
            limits = _decode_limits(value, initial)
    return tuple(h for h in headers if not h[0].startswith(RESERVED)), limits


def _decode_limits(contents: bytes, initial: Limits) -> Limits:
    stated: dict[str, int] = {}
    for name, value in decode_headers(contents):
        key = _NAMES.get(name)
        if key is None:
            continue  # AQ-LIMIT-1: a later version may state more
        try:
            number, end = decode_varint(value, 0, len(value))
        except Incomplete:
            end = -1
        if end != len(value):
            raise RemoteProtocolError("AQ-LIMIT-1", f"the limit {key} is not one varint")
        stated[key] = number
    # A peer may state values that are invalid here, such as a window of 0.
    values = {key: getattr(initial, key) for key in _NAMES.values()}
    limits: Limits = unchecked(Limits, {**values, **stated})
    return limits
