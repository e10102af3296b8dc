"""The four PDUs of ScalableIPC, with a strict encoder and decoder."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from aqueduct.errors import RemoteProtocolError

VERSION = 0x10
ID_SIZE = 16
INCARNATION = 8
"""Bytes at the start of an owner id that an endpoint never changes (IPC-ID-2)."""
MAX_ACK = 512
"""An ack PDU over this is discarded (IPC-PDU-7)."""
MAX_INT32 = 2**31 - 1

_PREFIX = struct.Struct(">BB4x16s")
_TRANSFER = struct.Struct(">BB4x16s16si")
_HEADER_ACK = struct.Struct(">BB4x16sh")
_DATA_ACK = struct.Struct(">BB4x16sih")
_SIZE = struct.Struct(">i")
_NO_ID = bytes(ID_SIZE)

PREFIX_SIZE = _PREFIX.size
OVERHEAD = _TRANSFER.size
"""Bytes of a HEADER or DATA PDU without its data."""


class Opcode(IntEnum):
    """The kinds of PDU (IPC-PDU-1)."""

    DATA = 1
    DATA_ACK = 2
    HEADER = 3
    HEADER_ACK = 4


class Code(IntEnum):
    """The result of a PDU or a message; negative codes are never sent (IPC-PDU-6).

    ``ABORTED_BY_SENDER`` is reserved: no send ends with it, and a receiver acknowledges an aborted
    message with ``PROCESSING_ERROR``.
    """

    SUCCESS = 0
    PROCESSING_ERROR = 1
    INVALID_DESTINATION = 2
    MESSAGE_TOO_LARGE = 3
    RECEIVE_TIMEOUT = 4
    PDU_TOO_LARGE = 5
    APPLICATION = -1
    RESET = -2
    SHUTDOWN = -3
    SEND_TIMEOUT = -4
    ABORTED_BY_SENDER = -5
    PEER_RESTARTED = -6


@dataclass(frozen=True, slots=True)
class Header:
    """Announces a message, and carries its first piece or all of it."""

    message_id: bytes
    destination: bytes
    length: int
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return the PDU as bytes."""
        return header_head(self.message_id, self.destination, self.length) + self.payload


@dataclass(frozen=True, slots=True)
class Data:
    """Carries the next piece of a message; sequence numbers start at 1."""

    message_id: bytes
    destination: bytes
    sequence: int
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return the PDU as bytes."""
        return data_head(self.message_id, self.destination, self.sequence) + self.payload


@dataclass(frozen=True, slots=True)
class HeaderAck:
    """Answers a HEADER."""

    message_id: bytes
    code: int = 0
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return the PDU as bytes."""
        return header_ack(self.message_id, self.code) + self.payload


@dataclass(frozen=True, slots=True)
class DataAck:
    """Answers a DATA."""

    message_id: bytes
    sequence: int
    code: int = 0
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return the PDU as bytes."""
        return data_ack(self.message_id, self.sequence, self.code) + self.payload


Pdu: TypeAlias = Header | Data | HeaderAck | DataAck


def header_head(message_id: bytes, destination: bytes, length: int) -> bytes:
    """Return a HEADER without its data, which need not be copied."""
    return _TRANSFER.pack(Opcode.HEADER, VERSION, message_id, destination, length)


def data_head(message_id: bytes, destination: bytes, sequence: int) -> bytes:
    """Return a DATA without its data."""
    return _TRANSFER.pack(Opcode.DATA, VERSION, message_id, destination, sequence)


def header_ack(message_id: bytes, code: int = 0) -> bytes:
    """Return a HEADER_ACK without payload, as most have none."""
    return _HEADER_ACK.pack(Opcode.HEADER_ACK, VERSION, message_id, code)


def data_ack(message_id: bytes, sequence: int, code: int = 0) -> bytes:
    """Return a DATA_ACK without payload."""
    return _DATA_ACK.pack(Opcode.DATA_ACK, VERSION, message_id, sequence, code)


def decode(pdu: bytes) -> Pdu:
    """Decode a PDU; raise `RemoteProtocolError` with the rule that it breaks."""
    if len(pdu) < PREFIX_SIZE:
        raise RemoteProtocolError("IPC-PDU-2", f"{len(pdu)} bytes are no PDU")
    opcode = pdu[0]
    if pdu[1] != VERSION:
        raise RemoteProtocolError("IPC-PDU-3", f"version {pdu[1]:#04x}, not {VERSION:#04x}")
    if opcode in (Opcode.HEADER, Opcode.DATA):
        return _decode_transfer(opcode, pdu)
    if opcode not in (Opcode.HEADER_ACK, Opcode.DATA_ACK):
        raise RemoteProtocolError("IPC-PDU-1", f"opcode {opcode}")
    if len(pdu) > MAX_ACK:
        raise RemoteProtocolError("IPC-PDU-7", f"an ack of {len(pdu)} bytes")
    return _decode_ack(opcode, pdu)


def _decode_transfer(opcode: int, pdu: bytes) -> Pdu:
    if len(pdu) < OVERHEAD:
        raise RemoteProtocolError("IPC-PDU-2", f"{len(pdu)} bytes are no {Opcode(opcode).name}")
    _, _, message_id, destination, number = _TRANSFER.unpack_from(pdu)
    _check_id(message_id, "message id")
    _check_id(destination, "destination id")
    if opcode == Opcode.HEADER:
        if number < 0:
            raise RemoteProtocolError("IPC-PDU-5", f"a message of {number} bytes")
        return Header(message_id, destination, number, pdu[OVERHEAD:])
    _check_sequence(number)
    return Data(message_id, destination, number, pdu[OVERHEAD:])


def _decode_ack(opcode: int, pdu: bytes) -> Pdu:
    layout = _HEADER_ACK if opcode == Opcode.HEADER_ACK else _DATA_ACK
    if len(pdu) < layout.size:
        raise RemoteProtocolError("IPC-PDU-2", f"{len(pdu)} bytes are no {Opcode(opcode).name}")
    payload = pdu[layout.size :]
    if opcode == Opcode.HEADER_ACK:
        _, _, message_id, code = _HEADER_ACK.unpack_from(pdu)
        _check_id(message_id, "message id")
        _check_code(code)
        return HeaderAck(message_id, code, payload)
    _, _, message_id, sequence, code = _DATA_ACK.unpack_from(pdu)
    _check_id(message_id, "message id")
    _check_sequence(sequence)
    _check_code(code)
    return DataAck(message_id, sequence, code, payload)


def _check_id(value: bytes, what: str) -> None:
    if value == _NO_ID:
        raise RemoteProtocolError("IPC-PDU-4", f"a {what} of zeros")


def _check_sequence(number: int) -> None:
    if number < 1:
        raise RemoteProtocolError("IPC-PDU-5", f"sequence number {number}")


def _check_code(code: int) -> None:
    if code < 0:
        raise RemoteProtocolError("IPC-PDU-6", f"error code {code} on the wire")


def encode_size(size: int) -> bytes:
    """Return the payload of an ack with PDU_TOO_LARGE (IPC-PDU-8)."""
    return _SIZE.pack(size)


def decode_size(payload: bytes) -> int | None:
    """Return the size in an ack with PDU_TOO_LARGE, or None."""
    return int(_SIZE.unpack(payload)[0]) if len(payload) == _SIZE.size else None


def decode_owner(payload: bytes) -> bytes | None:
    """Return the owner id in an ack with INVALID_DESTINATION, or None (IPC-PDU-8)."""
    return payload if len(payload) == ID_SIZE and payload != _NO_ID else None
