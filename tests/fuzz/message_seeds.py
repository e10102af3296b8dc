"""The seeds of the target `ipc`: small programs that reach every PDU and every result."""

from tests.fuzz.messages import LIMITS_ARE_TIGHT, REPORTS_SENT, Op

THERE = 0x80
"""The bit of an opcode that selects the second side."""

ALL = bytes((Op.DELIVER_ALL,))
TURN = ALL * 3
TAKE = bytes((THERE | Op.TAKE, 0))


def send(size: int, side: int = 0) -> bytes:
    """A message; see `messages.SIZES`."""
    return bytes((side | Op.SEND, size))


def wait(moments: int) -> bytes:
    return bytes((Op.WAIT, moments))


def honest_messages() -> dict[str, bytes]:
    """Return programs of two honest sides: each size, each result, and each network fault."""
    delivered = send(2) + TURN + TAKE + ALL
    bodies = {
        "empty": send(0) + TURN + TAKE + ALL,
        "small": delivered + send(1) + ALL + TAKE + ALL,
        "pieces": send(7) + ALL * 12 + TAKE + ALL,
        "large": delivered + send(8) + ALL * 282,
        "too-large": delivered + send(9) + ALL * 3,
        "both-ways": send(1) + send(1, THERE) + TURN + TAKE + bytes((Op.TAKE, 0)) + ALL,
        "crowd": send(1) * 8 + TURN + TAKE * 8 + ALL,
        "retries": send(5) + wait(3) * 9 + ALL * 3,
        "lost": delivered + send(1) + bytes((Op.LOSE, 0)) + wait(4) + ALL + TAKE,
        "repeated": delivered + send(1) + bytes((Op.REPEAT, 0)) * 3 + ALL + TAKE + ALL,
        "late": delivered
        + send(1)
        + bytes((Op.REPEAT, 0, Op.DELIVER, 0))
        + TAKE
        + bytes((THERE | Op.DELIVER, 0))
        + wait(255) * 2,
        "never-taken": send(1) + TURN + wait(120) + ALL + TAKE,
        "refused": send(1) + TURN + bytes((THERE | Op.REFUSE, 0)) + ALL,
        "cancelled": send(7) + ALL * 4 + bytes((Op.CANCEL, 0)) + ALL,
        "cancelled-early": send(1) + TURN + bytes((Op.CANCEL, 0)) + ALL + TAKE,
        "timeout": send(7) + wait(255),
        "half": delivered + send(7) + ALL * 2 + bytes((Op.LOSE, 0)) + wait(140),
        "new-owner": delivered + send(1) + bytes((THERE | Op.CHANGE_OWNER, 0)) + TURN + TAKE,
        "restart": delivered + send(1) + send(7) + bytes((THERE | Op.RESTART,)) + ALL * 9,
        "restart-after-taking": delivered
        + send(1)
        + ALL
        + TAKE
        + bytes((THERE | Op.LOSE, 0, THERE | Op.RESTART))
        + wait(4)
        + ALL * 4
        + TAKE,
        "restarted-sender": send(7) + ALL * 4 + bytes((Op.RESTART,)) + send(1) + ALL * 4,
        "trouble": delivered + bytes((Op.TROUBLE, 0)) + send(1) + TURN + TAKE,
        "smaller": bytes((Op.RESIZE, 90)) + send(7) + ALL * 9,
        "closed": send(1) + TURN + bytes((THERE | Op.CLOSE,)) + send(1) + ALL + bytes((Op.CLOSE,)),
        # A copy of a taken message arrives after its id expired, from a sender whose timer
        # has not run yet.
        "stood-still": delivered
        + send(1)
        + bytes((Op.REPEAT, 0, Op.DELIVER, 0))
        + TAKE
        + bytes((THERE | Op.LOSE, 0, Op.STAND_STILL, 255))
        + bytes((THERE | Op.CHANGE_OWNER, 0, Op.STAND_STILL, 255, THERE | Op.CHANGE_OWNER, 0))
        + ALL * 4
        + TAKE,
        "reported": send(7) + bytes((Op.REPORT_SENT, 0)) + wait(4) + ALL * 9,
    }
    settings = dict.fromkeys(("crowd", "large", "too-large"), LIMITS_ARE_TIGHT)
    settings["reported"] = REPORTS_SENT
    return {name: bytes((settings.get(name, 0),)) + body for name, body in bodies.items()}


def forged_messages() -> dict[str, bytes]:
    """Return programs of a forger that sends each PDU, in and out of order."""
    header, data = THERE | Op.FORGE_HEADER, THERE | Op.FORGE_DATA
    mine, yours = 0, 2
    bodies = {
        "header": bytes((header, 0xE1, mine, 2, 1)),
        "many-headers": b"".join(bytes((header, 0xE1 + n, mine, 4, 9)) for n in range(9)),
        "misdirected": bytes((header, 0xE1, 0xE2, 2, 1)),
        "zeros": bytes((header, 0xE0, mine, 2, 1, data, 0xE1, 0xE0, 1, 1)),
        "long": bytes((header, 0xE1, mine, 7, 1, header, 0xE1, mine, 4, 200)),
        "data": bytes((header, 0xE1, mine, 4, 9, data, 0xE1, mine, 1, 9, data, 0xE1, mine, 3, 9)),
        "data-long": bytes((header, 0xE1, mine, 4, 9, data, 0xE1, mine, 1, 200)),
        "abort": bytes((header, 0xE1, mine, 1, 1, data, 0xE1, mine, 1, 0)) + TAKE,
        "again": bytes((header, 0xE1, mine, 1, 1, data, 0xE1, mine, 1, 0))
        + (wait(255) + bytes((THERE | Op.CHANGE_OWNER, 0))) * 2
        + bytes((header, 0xE1, mine, 4, 1))
        + TAKE,
        "acks": send(7) + bytes((Op.FORGE_HEADER_ACK, yours, 0, 0, Op.FORGE_DATA_ACK, yours, 1, 0)),
        "codes": send(7)
        + b"".join(bytes((Op.FORGE_HEADER_ACK, yours, code, 4)) for code in (2, 5, 6)),
        "new-ids": send(7)
        + b"".join(bytes((Op.FORGE_HEADER_ACK, yours, 2, 0xE1 + n)) for n in range(12)),
        "bytes": bytes((Op.FORGE_BYTES, 4)) + b"\x03\x10\x00\x00",
    }
    return {f"forged-{name}": bytes((LIMITS_ARE_TIGHT,)) + body for name, body in bodies.items()}
