"""Framing of PDUs on a byte stream: one byte type, four bytes length, the PDU (IPC-TCP-1)."""

from __future__ import annotations

import struct

from aqueduct.errors import RemoteProtocolError

PDU_TYPE = 0x01
"""The only frame type."""
HEAD_SIZE = 5

_HEAD = struct.Struct(">BI")


def frame_head(size: int) -> bytes:
    """Return the frame header of a PDU of this size."""
    return _HEAD.pack(PDU_TYPE, size)


class Deframer:
    """Splits the bytes of one connection, in chunks of any size, into PDUs."""

    __slots__ = ("_held", "_largest", "_needed", "_pdus", "_pieces")

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._pdus: list[bytes] = []
        # The pieces of an incomplete frame, and the bytes needed to continue. They are joined only
        # then, so that a frame in many pieces is copied once.
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = HEAD_SIZE

    @property
    def held(self) -> int:
        """The bytes of an incomplete frame that are kept."""
        return self._held

    def handle_data(self, data: bytes | memoryview) -> None:
        """Add bytes; raise `RemoteProtocolError` for an invalid frame.

        `poll_pdus` still returns the PDUs before that frame; add no more bytes after it.
        """
        if self._held:
            self._held += len(data)
            self._pieces.append(bytes(data))
            if self._held < self._needed:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
        start, end = 0, len(data)
        needed = HEAD_SIZE
        while end - start >= HEAD_SIZE:
            kind, size = _HEAD.unpack_from(data, start)
            if kind != PDU_TYPE:
                raise RemoteProtocolError("IPC-TCP-2", f"a frame of type {kind:#04x}")
            if size > self._largest:
                reason = f"a PDU of {size} bytes; at most {self._largest} are taken"
                raise RemoteProtocolError("IPC-TCP-3", reason)
            stop = start + HEAD_SIZE + size
            if stop > end:
                needed = HEAD_SIZE + size
                break
            self._pdus.append(bytes(data[start + HEAD_SIZE : stop]))
            start = stop
        self._needed = needed
        self._held = end - start
        if self._held:
            self._pieces.append(bytes(data[start:]))

    def poll_pdus(self) -> list[bytes]:
        """Return the complete PDUs, in order."""
        pdus = self._pdus
        self._pdus = []
        return pdus
