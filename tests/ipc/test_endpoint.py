"""The public endpoint, over UDP on loopback and within the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

import aqueduct
from aqueduct import ipc
from aqueduct.errors import (
    BindError,
    ConnectError,
    EncodeError,
    EndpointClosed,
    LocalProtocolError,
    MessageRefused,
    MessageTooLarge,
    PeerUnreachable,
    SendTimeout,
    TLSError,
)
from aqueduct.security import make_authority, make_certificate
from tests.processes.peers import eventually

ADDRESSES = ["udp://127.0.0.1:0", "udp://[::1]:0", "local://"]
QUICK = ipc.IpcSettings(ack_timeout=0.3, receive_timeout=0.3, min_backoff=0.01, max_backoff=0.02)


@contextlib.asynccontextmanager
async def two(
    address: str = "udp://127.0.0.1:0", config: ipc.IpcSettings | None = None
) -> AsyncIterator[tuple[ipc.Endpoint[bytes], ipc.Endpoint[bytes]]]:
    async with (
        ipc.Endpoint(address, config=config) as sender,
        ipc.Endpoint(address, config=config) as receiver,
    ):
        yield sender, receiver


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("size", [0, 1, 100, 59_958, 59_959, 1_000_000])
async def test_a_message_arrives_whole_and_send_returns_once_it_is_taken(
    address: str, size: int
) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with two(address) as (sender, receiver):
        sending = asyncio.create_task(sender.send(receiver.address, payload))
        message = await receiver.receive()
        await sending
        assert message.payload == payload
        assert message.source == sender.address


async def test_send_waits_for_the_receiver_to_take_the_message() -> None:
    async with two() as (sender, receiver):
        sending = asyncio.create_task(sender.send(receiver.address, b"patience"))
        await asyncio.sleep(0.05)
        assert not sending.done()
        await receiver.receive()
        await sending


async def test_an_answer_goes_to_the_source_of_a_message() -> None:
    async with two() as (client, server):

        async def serve() -> None:
            async for message in server:
                await server.send(message.source, message.payload.upper())

        serving = asyncio.create_task(serve())
        for word in (b"a", b"bc", b"def"):
            await client.send(server.address, word)
            assert (await client.receive()).payload == word.upper()
        serving.cancel()


async def test_concurrent_messages_all_arrive() -> None:
    async with two() as (sender, receiver):
        sends = [
            asyncio.create_task(sender.send(receiver.address, str(n).encode()))
            for n in range(1_000)
        ]
        got = [int((await receiver.receive()).payload) for _ in sends]
        await asyncio.gather(*sends)
        assert sorted(got) == list(range(1_000))
        assert sender.statistics().sent == receiver.statistics().received == 1_000


class Point(msgspec.Struct):
    x: int
    y: int


async def test_messages_can_have_a_type() -> None:
    async with (
        ipc.Endpoint("udp://127.0.0.1:0", Point) as sender,
        ipc.Endpoint("udp://127.0.0.1:0", Point) as receiver,
    ):
        sending = asyncio.create_task(sender.send(receiver.address, Point(1, 2)))
        assert (await receiver.receive()).payload == Point(1, 2)
        await sending


async def test_a_message_of_another_type_is_refused_and_the_next_is_received(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        ipc.Endpoint("udp://127.0.0.1:0", str) as sender,
        ipc.Endpoint("udp://127.0.0.1:0", Point) as receiver,
        ipc.Endpoint("udp://127.0.0.1:0", Point) as friend,
    ):
        receiving = asyncio.create_task(receiver.receive())
        with pytest.raises(MessageRefused, match="refused the message"):
            await sender.send(receiver.address, "not a point")
        await friend.send(receiver.address, Point(3, 4))
        assert (await receiving).payload == Point(3, 4)
        assert "not of type Point" in caplog.text


async def test_channels_cannot_be_sent() -> None:
    async with ipc.Endpoint("local://", aqueduct.Sender[int]) as endpoint:
        sender, receiver = aqueduct.channel(int)
        with pytest.raises(EncodeError, match="cannot travel"):
            await endpoint.send("local://x", sender)
        sender.cancel()
        receiver.close()


async def test_a_message_that_is_not_bytes_needs_a_typed_endpoint() -> None:
    async with ipc.Endpoint("local://") as endpoint:
        with pytest.raises(EncodeError, match="give it a type"):
            await endpoint.send("local://x", "text")  # type: ignore[arg-type]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_can_take_messages(is_async: bool) -> None:
    got: list[bytes] = []

    def plain(message: ipc.ReceivedMessage[bytes]) -> None:
        got.append(message.payload)

    async def slow(message: ipc.ReceivedMessage[bytes]) -> None:
        await asyncio.sleep(0.01)
        got.append(message.payload)

    handler = slow if is_async else plain
    async with (
        ipc.Endpoint("udp://127.0.0.1:0") as sender,
        ipc.Endpoint("udp://127.0.0.1:0", on_message=handler) as receiver,
    ):
        for word in (b"one", b"two"):
            await sender.send(receiver.address, word)
            assert got[-1] == word  # a message is taken when the function has returned
        with pytest.raises(LocalProtocolError, match="on_message"):
            await receiver.receive()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_that_raises_refuses_the_message(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def plain(message: ipc.ReceivedMessage[bytes]) -> None:
        raise ZeroDivisionError

    async def later(message: ipc.ReceivedMessage[bytes]) -> None:
        raise ZeroDivisionError

    async with (
        ipc.Endpoint("local://") as sender,
        ipc.Endpoint("local://", on_message=later if is_async else plain) as receiver,
    ):
        with pytest.raises(MessageRefused):
            await sender.send(receiver.address, b"x")
        assert receiver.statistics().refused == 1
    assert "ZeroDivisionError" in caplog.text


async def test_a_send_to_a_closed_port_fails_with_the_reason() -> None:
    async with ipc.Endpoint("udp://127.0.0.1:0", config=QUICK) as sender:
        async with ipc.Endpoint("udp://127.0.0.1:0") as gone:
            address = gone.address
        with pytest.raises(SendTimeout, match="connection refused") as raised:
            await sender.send(address, b"hello?")
        assert not raised.value.may_have_arrived


async def test_a_receiver_that_does_not_take_makes_the_send_time_out() -> None:
    async with two(config=QUICK) as (sender, receiver):
        with pytest.raises(SendTimeout) as raised:
            await sender.send(receiver.address, b"x")
        assert raised.value.may_have_arrived
        await asyncio.sleep(0.05)  # the abort arrives
        receiving = asyncio.create_task(receiver.receive())
        await asyncio.sleep(0.05)
        assert not receiving.done()  # a withdrawn message is not delivered
        receiving.cancel()


async def test_a_withdrawn_message_is_not_kept_for_a_later_receive() -> None:
    async with two() as (sender, receiver):
        for _ in range(5):
            with pytest.raises(SendTimeout):
                await sender.send(receiver.address, bytes(100_000), timeout=0.05)
        await asyncio.sleep(0.05)  # the last abort arrives
        assert len(receiver._arrived) == 0
        assert receiver._exchange.leftovers() == {}
        await sender_sends(sender, receiver, b"x")


async def test_functions_for_messages_that_were_withdrawn_count_until_they_end() -> None:
    may_end = asyncio.Event()
    running = 0

    async def slow(message: ipc.ReceivedMessage[bytes]) -> None:
        nonlocal running
        running += 1
        await may_end.wait()

    few = ipc.IpcSettings(max_receives=6)  # one remote may hold half
    async with (
        ipc.Endpoint("udp://127.0.0.1:0") as sender,
        ipc.Endpoint("udp://127.0.0.1:0", on_message=slow, config=few) as receiver,
    ):
        for _ in range(5):
            sends = [sender.send(receiver.address, b"x", timeout=0.05) for _ in range(3)]
            for outcome in await asyncio.gather(*sends, return_exceptions=True):
                assert isinstance(outcome, SendTimeout)
        assert running == 3
        may_end.set()
        await sender.send(receiver.address, b"x")
        assert receiver._exchange.leftovers() == {}


async def test_the_timeout_of_a_send_includes_the_wait_for_a_slot() -> None:
    async with ipc.Endpoint("udp://127.0.0.1:0", config=ipc.IpcSettings(max_sends=1)) as sender:
        first = asyncio.create_task(sender.send("udp://127.0.0.1:9", b"x"))
        await asyncio.sleep(0)
        with pytest.raises(SendTimeout, match="max_sends") as raised:
            await sender.send("udp://127.0.0.1:9", b"y", timeout=0.05)
        assert not raised.value.may_have_arrived
        assert isinstance(raised.value, TimeoutError)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_the_timeout_of_a_send_includes_name_resolution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ipc.Endpoint("udp://127.0.0.1:0") as sender:

        async def locate(address: str) -> None:
            await asyncio.sleep(60)

        monkeypatch.setattr(sender._transport, "locate", locate)
        with pytest.raises(SendTimeout, match="not resolved yet"):
            await sender.send("udp://localhost:9", b"y", timeout=0.05)


async def test_a_send_from_another_loop_is_refused_before_anything_is_sent() -> None:
    async with two() as (sender, receiver):
        address = receiver.address

        def elsewhere() -> None:
            for work in (sender.send(address, b"x"), receiver.receive(), sender.close()):
                with pytest.raises(LocalProtocolError, match="another event loop"):
                    asyncio.run(work)

        await asyncio.to_thread(elsewhere)
        assert sender.statistics().pdus_sent == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", True])
async def test_an_invalid_timeout_is_rejected(seconds: float) -> None:
    async with ipc.Endpoint("local://") as sender:
        with pytest.raises((ValueError, TypeError), match="a timeout is"):
            await sender.send("local://x", b"x", timeout=seconds)
        with pytest.raises(SendTimeout):
            await sender.send("local://x", b"x", timeout=0)


async def test_an_address_is_a_string() -> None:
    async with ipc.Endpoint("local://") as sender:
        with pytest.raises(TypeError, match="an address is a string"):
            await sender.send(5, b"x")  # type: ignore[arg-type]


async def test_the_repr_of_an_endpoint_has_its_address_and_state() -> None:
    endpoint = ipc.Endpoint("local://Me")
    assert repr(endpoint) == "<Endpoint local://Me, not open>"
    async with endpoint:
        assert repr(endpoint) == "<Endpoint local://Me>"
    assert repr(endpoint) == "<Endpoint local://Me, closed>"


async def test_a_receive_that_is_cancelled_leaves_nothing_behind() -> None:
    async with ipc.Endpoint("local://") as endpoint:
        for _ in range(10):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(endpoint.receive(), 0.001)
        assert len(endpoint._receivers) == 0


async def test_a_send_can_have_a_shorter_timeout() -> None:
    async with two() as (sender, receiver):
        started = asyncio.get_running_loop().time()
        with pytest.raises(SendTimeout):
            await sender.send(receiver.address, b"x", timeout=0.05)
        assert asyncio.get_running_loop().time() - started < 2


async def test_a_cancelled_send_is_aborted_and_not_taken() -> None:
    async with two() as (sender, receiver):
        sending = asyncio.create_task(sender.send(receiver.address, b"no"))
        await asyncio.sleep(0.02)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.sleep(0.05)  # the abort arrives
        await sender_sends(sender, receiver, b"yes")
        assert sender.statistics().failed == 1


async def sender_sends(
    sender: ipc.Endpoint[bytes], receiver: ipc.Endpoint[bytes], payload: bytes
) -> None:
    sending = asyncio.create_task(sender.send(receiver.address, payload))
    assert (await receiver.receive()).payload == payload
    await sending


async def test_a_message_too_large_is_refused_and_the_next_is_not() -> None:
    small = ipc.IpcSettings(max_message=65_536)
    async with (
        ipc.Endpoint("udp://127.0.0.1:0") as sender,
        ipc.Endpoint("udp://127.0.0.1:0", config=small) as receiver,
    ):
        with pytest.raises(MessageTooLarge, match="max_message"):
            await sender.send(receiver.address, bytes(65_537))
        await sender_sends(sender, receiver, bytes(65_536))


async def test_smaller_pdus_are_learned_from_the_peer() -> None:
    async with (
        ipc.Endpoint("udp://127.0.0.1:0") as sender,
        ipc.Endpoint("udp://127.0.0.1:0", config=ipc.IpcSettings(max_pdu=512)) as receiver,
    ):
        await sender_sends(sender, receiver, bytes(5_000))
        before = sender.statistics().pdus_sent
        await sender_sends(sender, receiver, bytes(5_000))
        assert sender.statistics().pdus_sent - before == 11  # no PDU too large this time


async def test_closing_fails_pending_sends_and_ends_the_loop() -> None:
    async with two() as (sender, receiver):
        sending = asyncio.create_task(sender.send(receiver.address, b"x"))
        iterating = asyncio.create_task(collect(receiver))
        await sending
        stuck = asyncio.create_task(sender.send("udp://127.0.0.1:9", b"x"))
        await asyncio.sleep(0.01)
        await sender.close()
        with pytest.raises(EndpointClosed):
            await stuck
        with pytest.raises(EndpointClosed):
            await sender.send(receiver.address, b"x")
        with pytest.raises(EndpointClosed):
            await sender.receive()
        await receiver.close()
        assert await iterating == [b"x"]
        await receiver.close()


async def collect(endpoint: ipc.Endpoint[bytes]) -> list[bytes]:
    return [message.payload async for message in endpoint]


async def test_messages_not_taken_are_refused_when_the_receiver_closes() -> None:
    async with two() as (sender, receiver):
        sending = asyncio.create_task(sender.send(receiver.address, b"x"))
        await asyncio.sleep(0.05)
        await receiver.close()
        with pytest.raises(MessageRefused):
            await sending


async def test_sends_past_the_limit_wait_for_others() -> None:
    async with two(config=ipc.IpcSettings(max_sends=2)) as (sender, receiver):
        sends = [asyncio.create_task(sender.send(receiver.address, b"x")) for _ in range(10)]
        for _ in sends:
            await receiver.receive()
        await asyncio.gather(*sends)


async def test_a_cancelled_receive_leaves_its_message_to_the_next() -> None:
    async with two("local://") as (sender, receiver):
        first = asyncio.create_task(receiver.receive())
        second = asyncio.create_task(receiver.receive())
        sending = asyncio.create_task(sender.send(receiver.address, b"x"))
        for _ in range(100):
            if receiver._arrived:
                break
            await asyncio.sleep(0)
        first.cancel()  # it was woken for the message, and has not run yet
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await second).payload == b"x"
        await sending


@pytest.mark.parametrize(
    ("to", "advice"),
    [
        ("tls://127.0.0.1:1", "cannot send to"),
        ("udp://127.0.0.1", "udp://host:port"),
        ("127.0.0.1:1", "not an address"),
        ("udp://no.such.host.invalid:1", "cannot find"),
        ("udp://[::1]:5", "cannot find"),
    ],
)
async def test_an_unusable_destination_raises_with_the_reason(to: str, advice: str) -> None:
    async with ipc.Endpoint("udp://127.0.0.1:0") as endpoint:
        with pytest.raises(ConnectError, match=advice):
            await endpoint.send(to, b"x")


async def test_an_endpoint_has_to_be_open_and_is_opened_once() -> None:
    endpoint = ipc.Endpoint("udp://127.0.0.1:0")
    with pytest.raises(LocalProtocolError, match="async with"):
        await endpoint.send("udp://127.0.0.1:1", b"x")
    with pytest.raises(LocalProtocolError, match="async with"):
        _ = endpoint.address
    async with endpoint:
        with pytest.raises(LocalProtocolError, match="once"):
            await endpoint.open()
    with pytest.raises(LocalProtocolError, match="once"):
        await endpoint.open()


async def test_a_port_in_use_raises_an_error_that_names_it() -> None:
    async with ipc.Endpoint("udp://127.0.0.1:0") as endpoint:
        with pytest.raises(BindError, match="in use") as caught:
            await ipc.Endpoint(endpoint.address).open()
        assert caught.value.address == endpoint.address


def test_certificates_are_for_tls_addresses_only() -> None:
    with pytest.raises(LocalProtocolError, match="tls://"):
        ipc.Endpoint("udp://127.0.0.1:0", trust=aqueduct.trust())


AUTHORITY = make_authority("a test")
SHOWN = make_certificate(["127.0.0.1"], AUTHORITY)
BELIEVED = aqueduct.trust(AUTHORITY.certificate)


@pytest.mark.parametrize("size", [0, 1, 300_000, 5_000_000])
async def test_over_tls_messages_and_replies_share_one_connection(size: int) -> None:
    async with (
        ipc.Endpoint("tls://127.0.0.1:0", tls=SHOWN) as server,
        ipc.Endpoint("tls://", trust=BELIEVED) as client,
    ):
        await sender_sends(client, server, bytes(size))
        sending = asyncio.create_task(client.send(server.address, b"?"))
        message = await server.receive()
        await sending
        answering = asyncio.create_task(server.send(message.source, b"!" * size))
        assert (await client.receive()).payload == b"!" * size
        await answering


async def test_over_tls_both_sides_can_listen_and_connect() -> None:
    async with (
        ipc.Endpoint("tls://127.0.0.1:0", tls=SHOWN, trust=BELIEVED) as one,
        ipc.Endpoint("tls://127.0.0.1:0", tls=SHOWN, trust=BELIEVED) as other,
    ):
        await sender_sends(one, other, b"from one")
        await sender_sends(other, one, b"from the other")


async def test_an_untrusted_certificate_fails_at_once_and_affects_no_other() -> None:
    stranger = make_certificate(["127.0.0.1"], make_authority("another authority"))
    async with (
        ipc.Endpoint("tls://127.0.0.1:0", tls=SHOWN) as server,
        ipc.Endpoint("tls://127.0.0.1:0", tls=stranger) as impostor,
        ipc.Endpoint("tls://", trust=BELIEVED) as client,
    ):
        async with asyncio.timeout(3):
            with pytest.raises(TLSError, match="certificate"):
                await client.send(impostor.address, b"secret")
            sends = [client.send(impostor.address, b"secret") for _ in range(3)]
            errors = await asyncio.gather(*sends, return_exceptions=True)
        assert len({id(error) for error in errors}) == 3
        await sender_sends(client, server, b"hello")
        assert impostor.statistics().pdus_received == 0


async def test_an_exposed_message_fails_as_unreachable_not_as_untrusted() -> None:
    stranger = make_certificate(["127.0.0.1"], make_authority("another authority"))
    async with ipc.Endpoint("tls://", trust=BELIEVED) as client:
        async with ipc.Endpoint("tls://127.0.0.1:0", tls=SHOWN) as server:
            await sender_sends(client, server, b"hello")
            sending = asyncio.create_task(client.send(server.address, b"?"))
            await asyncio.sleep(0.05)
            assert server._arrived
            address = server.address
            server._exchange.close = Mock()  # type: ignore[method-assign]  # it dies without a word
        async with ipc.Endpoint(address, tls=stranger):
            with pytest.raises(PeerUnreachable, match="may have received the message") as raised:
                await sending
    assert raised.value.may_have_arrived
    assert isinstance(raised.value.__cause__, TLSError)


async def test_an_answer_to_a_client_that_reconnected_is_a_delivery_error() -> None:
    """IPC-TCP-5."""
    async with (
        ipc.Endpoint("tls://127.0.0.1:0", tls=SHOWN, config=QUICK) as server,
        ipc.Endpoint("tls://", trust=BELIEVED) as client,
    ):
        sources = []
        for _ in range(2):
            sending = asyncio.create_task(client.send(server.address, b"question"))
            sources.append((await server.receive()).source)
            await sending
            for connection in list(client._transport._alive):  # type: ignore[attr-defined]
                connection.abort()
            await eventually(lambda: not server._transport._accepted, "it is lost")  # type: ignore[attr-defined]
        assert sources[0] != sources[1]
        with pytest.raises(SendTimeout, match="may have connected again under another") as caught:
            await server.send(sources[0], b"answer")
        assert caught.value.code == -4
        assert not caught.value.may_have_arrived


@pytest.mark.parametrize("scheme", ["udp", "tls"])
async def test_a_new_owner_id_and_pdu_size_interrupt_no_transfer(scheme: str) -> None:
    """IPC-CONF-4, IPC-ID-1."""
    tls: dict[str, Any] = {"tls": SHOWN} if scheme == "tls" else {}
    trust: dict[str, Any] = {"trust": BELIEVED} if scheme == "tls" else {}
    client_address = "tls://" if scheme == "tls" else "udp://127.0.0.1:0"
    async with (
        ipc.Endpoint(f"{scheme}://127.0.0.1:0", **tls) as server,
        ipc.Endpoint(client_address, **trust) as client,
    ):
        largest = server.max_pdu
        await sender_sends(client, server, bytes(2_000))
        before, owner = client.statistics().pdus_sent, server._exchange.owner
        server.change_owner()
        assert server._exchange.owner != owner
        server.resize(542)
        assert server.max_pdu == 542
        await sender_sends(client, server, bytes(2_000))
        assert client.statistics().pdus_sent - before >= 4  # 500 bytes of data each
        server.resize(largest)
        for wrong, says in ((511, "at least 512"), (largest + 1, f"at most {largest}")):
            with pytest.raises(LocalProtocolError, match=says):
                server.resize(wrong)
        with pytest.raises(TypeError, match="a whole number of bytes"):
            server.resize(542.5)  # type: ignore[arg-type]
        assert server.max_pdu == largest


async def test_the_limits_of_connections_can_be_set() -> None:
    """IPC-TCP-6."""
    limits = ipc.TcpLimits(idle_timeout=0.1)
    async with (
        ipc.Endpoint("tls://127.0.0.1:0", tls=SHOWN, limits=limits) as server,
        ipc.Endpoint("tls://", trust=BELIEVED) as client,
    ):
        await sender_sends(client, server, b"hello")
        await eventually(lambda: not server._transport._accepted, "it is closed")  # type: ignore[attr-defined]
        await sender_sends(client, server, b"hello again")
    with pytest.raises(LocalProtocolError, match="limits are for tls://"):
        ipc.Endpoint("udp://127.0.0.1:0", limits=limits)


async def test_a_receiver_that_starts_late_gets_the_message() -> None:
    async with ipc.Endpoint("tls://", trust=BELIEVED) as client:
        async with ipc.Endpoint("tls://127.0.0.1:0", tls=SHOWN) as first:
            address = first.address
        sending = asyncio.create_task(client.send(address, b"patience"))
        await asyncio.sleep(0.2)
        async with ipc.Endpoint(address, tls=SHOWN) as second:
            assert (await second.receive()).payload == b"patience"
            await sending


@pytest.mark.parametrize("address", ["tls://127.0.0.1:0", "tls://"])
def test_listening_requires_a_certificate(address: str) -> None:
    wrong = SHOWN if address == "tls://" else None
    with pytest.raises(LocalProtocolError, match="give tls="):
        ipc.Endpoint(address, tls=wrong)


async def test_garbage_is_counted_and_has_no_other_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with two() as (sender, receiver):
        loop = asyncio.get_running_loop()
        host, port = receiver.address.removeprefix("udp://").split(":")
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(host, int(port))
        )
        for size in (0, 1, 21, 22, 42, 1_000):
            transport.sendto(b"\xff" * size)
        await sender_sends(sender, receiver, b"still here")
        transport.close()
        assert receiver.statistics().malformed >= 5


async def test_the_repr_of_a_message_has_payload_source_and_id() -> None:
    async with two() as (sender, receiver):
        sending = asyncio.create_task(sender.send(receiver.address, b"x"))
        message = await receiver.receive()
        await sending
        assert f"source='{sender.address}'" in repr(message)
        assert str(message.id) in repr(message)


async def test_delivered_messages_do_not_wake_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two() as (sender, receiver):
        wake = Mock(wraps=sender._wake)
        monkeypatch.setattr(sender, "_wake", wake)
        taking = asyncio.create_task(take(receiver, 200))
        for _ in range(200):
            await sender.send(receiver.address, b"quickly")
        await taking
        await asyncio.sleep(0.25)  # past the longest backoff
        assert wake.call_count < 30


async def take(receiver: ipc.Endpoint[bytes], count: int) -> None:
    for _ in range(count):
        await receiver.receive()


async def test_a_timer_that_fires_slightly_early_counts_as_due() -> None:
    async with two() as (sender, receiver):
        sending = asyncio.create_task(sender.send(receiver.address, b"patience"))
        await asyncio.sleep(0.02)  # the least backoff is 0.05
        for _ in range(3):  # the first may be for the PDU that asked for the id
            sender._wake()
        assert sender.statistics().retries >= 1
        await receiver.receive()
        await sending
