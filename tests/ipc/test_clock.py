"""The clock of an endpoint."""

import asyncio
import socket
import sys
import time

import pytest

from aqueduct import ipc
from aqueduct.errors import SendTimeout
from aqueduct.ipc import system
from aqueduct.ipc.core.pdu import Code, Header, HeaderAck, decode


def test_the_clock_runs_while_the_host_sleeps() -> None:
    name = "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    reference = time.clock_gettime(getattr(time, name))
    assert 0 <= system.now() - reference < 1


def test_the_monotonic_clock_is_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 12_345_678, raising=False)
    assert system.choose_clock() is time.monotonic
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert system.choose_clock() is time.monotonic


async def test_a_sender_that_wakes_after_its_deadline_follows_no_redirect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """IPC-ID-5: the receiver may have dropped the id while the sender's host slept."""
    slept = 0.0
    true_now = system.now
    monkeypatch.setattr(system, "now", lambda: true_now() + slept)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.setblocking(False)
        async with ipc.Endpoint("udp://127.0.0.1:0") as endpoint:
            address = f"udp://127.0.0.1:{peer.getsockname()[1]}"
            send = asyncio.create_task(endpoint.send(address, b"once"))
            pdu, sender = await loop.sock_recvfrom(peer, 65_536)
            header = decode(pdu)
            assert isinstance(header, Header)
            slept = 20.0
            owner = b"the id of today."
            answer = HeaderAck(header.message_id, Code.INVALID_DESTINATION, owner).encode()
            peer.sendto(answer, sender)
            with pytest.raises(SendTimeout):
                await asyncio.wait_for(send, 2)
            while (pdu := peer.recv(65_536)) and (said := decode(pdu)).payload:
                assert isinstance(said, Header)
                assert said.destination != owner
