"""`Sender` and `Receiver`, local and networked: cancellation, ends, moving, `repr` and calls."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aqueduct import (
    ChannelCancelled,
    ChannelClosed,
    ChannelMoved,
    ConnectionLost,
    EncodeError,
    EndOfChannel,
    Mode,
    Receiver,
    ReceiverClosed,
    Sender,
    WouldBlock,
    channel,
    oneshot,
)
from tests.api.joined import GiveReceiver, GiveSender, joined, receiving, sending
from tests.processes.peers import eventually


class Ask(msgspec.Struct):
    text: str
    reply: Sender[str]


class AskTwice(msgspec.Struct):
    first: Sender[str]
    second: Sender[bytes]


class Tell(msgspec.Struct):
    text: str
    more: Receiver[str] | None = None


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


@asynccontextmanager
async def between(where: str) -> AsyncIterator[tuple[Sender[int], Receiver[int]]]:
    """Yield both halves of a channel, local or across a connection."""
    if where == "network":
        async with sending(int) as halves:
            yield halves
    else:
        sender, receiver = channel(int)
        async with receiver:
            yield sender, receiver
        sender.cancel()


anywhere = pytest.mark.parametrize("where", ["local", "network"])


# -- receiving -------------------------------------------------------------------------------------


@anywhere
async def test_a_receive_that_is_cancelled_when_a_message_comes_loses_nothing(where: str) -> None:
    async with between(where) as (sender, receiver):
        for number in range(50):
            waiting = asyncio.create_task(receiver.receive())
            await asyncio.sleep(0)
            sender.send_nowait(number)
            if where == "network":
                port: Any = receiver._port
                while port.arrived:  # noqa: ASYNC110 -- until it is woken, and has not run
                    await asyncio.sleep(0)
            waiting.cancel()
            result = (await asyncio.gather(waiting, return_exceptions=True))[0]
            got = await receiver.receive() if isinstance(result, BaseException) else result
            assert got == number


@anywhere
async def test_a_wake_up_of_a_cancelled_receive_goes_to_the_next_one(where: str) -> None:
    async with between(where) as (sender, receiver):
        first, second = (asyncio.create_task(receiver.receive()) for _ in range(2))
        await asyncio.sleep(0)
        sender.send_nowait(1)
        if where == "network":
            await sender.flush()
        first.cancel()
        done, _ = await asyncio.wait({first, second}, return_when=asyncio.ALL_COMPLETED, timeout=1)
        if second not in done:
            assert first.result() == 1  # it had received the message
            sender.send_nowait(2)
            assert await second == 2
        else:
            assert second.result() == 1
            assert first.cancelled()


@anywhere
async def test_messages_that_arrive_together_are_shared_by_the_waiting_tasks(where: str) -> None:
    async with between(where) as (sender, receiver):
        waiting: list[asyncio.Task[Any]] = [
            asyncio.create_task(receiver.receive()),
            asyncio.create_task(receiver.receive_many(1)),
            asyncio.create_task(receiver.receive_message()),
        ]
        await asyncio.sleep(0)
        for number in range(3):
            sender.send_nowait(number)
        async with asyncio.timeout(60):
            one, many, message = await asyncio.gather(*waiting)
        assert sorted([one, *many, message.payload]) == [0, 1, 2]


@anywhere
async def test_iteration_resumes_with_the_next_message_after_a_break(where: str) -> None:
    async with between(where) as (sender, receiver):
        for number in range(6):
            sender.send_nowait(number)
        sender.finish()
        async for number in receiver:
            if number == 1:
                break
        assert await receiver.receive() == 2
        async for number in receiver:
            assert number == 3
            break
        assert (await receiver.receive_message()).payload == 4
        assert [number async for number in receiver] == [5]


@anywhere
async def test_receive_many_waits_for_one_message_and_returns_those_available(where: str) -> None:
    async with between(where) as (sender, receiver):
        waiting = asyncio.create_task(receiver.receive_many())
        await asyncio.sleep(0)
        for number in range(5):
            sender.send_nowait(number)
        got = await waiting
        while len(got) < 5:
            got += await receiver.receive_many(2)
        assert got == list(range(5))


@anywhere
async def test_receive_many_rejects_a_limit_of_zero(where: str) -> None:
    async with between(where) as (_, receiver):
        with pytest.raises(ValueError, match="at least one"):
            await receiver.receive_many(0)


@anywhere
async def test_receive_nowait_raises_would_block_without_a_message(where: str) -> None:
    async with between(where) as (sender, receiver):
        with pytest.raises(WouldBlock):
            receiver.receive_nowait()
        with pytest.raises(WouldBlock):
            receiver.receive_message_nowait()
        sender.send_nowait(1)
        if where == "network":
            await sender.flush()
        assert receiver.receive_nowait() == 1


# -- ends ------------------------------------------------------------------------------------------


@anywhere
async def test_a_block_finishes_its_sender_and_an_exception_cancels_it_and_propagates(
    where: str,
) -> None:
    async with between(where) as (sender, receiver):
        async with sender as same:
            assert same is sender
            await sender.send(1)
        assert [number async for number in receiver] == [1]
    async with between(where) as (sender, receiver):
        with pytest.raises(ZeroDivisionError):
            async with sender:
                raise ZeroDivisionError
        with pytest.raises(ChannelCancelled):
            await receiver.receive()
    async with between(where) as (sender, receiver):
        with pytest.raises(ZeroDivisionError):
            async with receiver:
                raise ZeroDivisionError
        await eventually(lambda: not sender._port.is_open(), "the sender gets the end")
        with pytest.raises(ReceiverClosed):
            await sender.send(1)


@anywhere
async def test_finish_cancel_and_close_are_idempotent(where: str) -> None:
    async with between(where) as (sender, receiver):
        sender.finish()
        sender.finish()
        sender.cancel()
        with pytest.raises(EndOfChannel):
            await receiver.receive()
        receiver.close()
        receiver.close()
        with pytest.raises(ChannelClosed):
            await receiver.receive()
        with pytest.raises(ChannelClosed) as caught:
            await sender.send(1)
        assert caught.value.payload == 1


@anywhere
@pytest.mark.parametrize("end", ["finish", "cancel"])
async def test_a_sender_that_ends_after_its_receiver_still_says_who_ended_first(
    where: str, end: str
) -> None:
    async with between(where) as (sender, receiver):
        await sender.send(1)
        receiver.close()
        await sender.wait_closed()
        getattr(sender, end)()
        with pytest.raises(ReceiverClosed):
            await sender.flush()
        with pytest.raises(ReceiverClosed):
            await sender.send(2)


@anywhere
async def test_flush_after_a_cancel_does_not_blame_a_receiver_that_closes_later(where: str) -> None:
    async with between(where) as (sender, receiver):
        await sender.send(1)
        assert await receiver.receive() == 1
        await sender.flush()
        sender.cancel()
        receiver.close()
        await sender.wait_closed()
        await sender.flush()  # everything had arrived


@anywhere
async def test_a_cancelled_task_leaves_its_block_with_a_cancelled_channel(where: str) -> None:
    async with between(where) as (sender, receiver):

        async def send() -> None:
            async with sender:
                await asyncio.Event().wait()

        task = asyncio.create_task(send())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ChannelCancelled):
            await receiver.receive()


async def test_a_garbage_collected_networked_sender_warns_and_is_cancelled() -> None:
    async with joined(GiveReceiver[int]) as (client, server):
        sender, receiver = channel(int)
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        warned = r"<Sender .* open> was not closed; .* finish\(\) or cancel\(\)"
        with pytest.warns(ResourceWarning, match=warned):
            del sender
        with pytest.raises(ChannelCancelled):
            await theirs.receive()


async def test_a_garbage_collected_networked_receiver_warns_and_is_closed() -> None:
    async with joined(GiveSender[int]) as (client, server):
        sender, receiver = channel(int)
        await client.entrypoint.send(GiveSender(sender))
        theirs = (await server.entrypoint.receive()).half
        with pytest.warns(ResourceWarning, match=r"<Receiver .* open> was not closed.* close\(\)"):
            del receiver
        await eventually(lambda: not theirs._port.is_open(), "the sender gets the end")
        with pytest.raises(ReceiverClosed):
            await theirs.send(1)


async def test_halves_that_have_ended_are_garbage_collected_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with receiving(int) as (sender, receiver):
            sender.send_nowait(1)
            sender.finish()
            assert [number async for number in receiver] == [1]
            del sender, receiver
            gc.collect()
        async with joined(Ask) as (client, server):
            reply, answer = oneshot(str)
            await client.entrypoint.send(Ask("x", reply))
            asked = await server.entrypoint.receive()
            await asked.reply.send("y")
            assert await answer.receive() == "y"
            del reply, answer, asked
            gc.collect()


async def test_a_half_ends_if_its_other_half_was_garbage_collected_before_it_was_sent() -> None:
    async with joined(GiveReceiver[int]) as (client, server):
        sender, receiver = channel(int)
        with pytest.warns(ResourceWarning):
            del sender
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        with pytest.raises(ChannelCancelled):
            await theirs.receive()
    async with joined(GiveSender[int]) as (client, server):
        other, kept = channel(int)
        with pytest.warns(ResourceWarning):
            del kept
        await client.entrypoint.send(GiveSender(other))
        theirs_to_send = (await server.entrypoint.receive()).half
        await eventually(lambda: not theirs_to_send._port.is_open(), "the sender gets the end")
        with pytest.raises(ReceiverClosed):
            await theirs_to_send.send(1)


async def test_messages_of_a_finished_sender_arrive_after_it_is_garbage_collected() -> None:
    async with joined(GiveReceiver[int]) as (client, server):
        sender, receiver = channel(int)
        await sender.send(1)
        sender.finish()
        del sender
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        assert [number async for number in theirs] == [1]


# -- moving ----------------------------------------------------------------------------------------


async def test_a_sender_that_was_sent_away_raises_channel_moved() -> None:
    async with joined(GiveSender[int]) as (client, _):
        sender, receiver = channel(int)
        await client.entrypoint.send(GiveSender(sender))
        with pytest.raises(ChannelMoved, match="the peer holds it now") as caught:
            await sender.send(1)
        assert caught.value.payload == 1
        with pytest.raises(ChannelMoved):
            sender.send_nowait(1)
        with pytest.raises(ChannelMoved):
            await sender.flush()
        with pytest.raises(ChannelMoved, match="a half can be sent once"):
            await client.entrypoint.send(GiveSender(sender))
        sender.finish()
        sender.cancel()
        assert sender.statistics() == {}
        receiver.close()


async def test_a_receiver_that_was_sent_away_raises_channel_moved() -> None:
    async with joined(GiveReceiver[int]) as (client, _):
        sender, receiver = channel(int)
        await client.entrypoint.send(GiveReceiver(receiver))
        for use in (receiver.receive, receiver.receive_message, receiver.receive_many):
            with pytest.raises(ChannelMoved):
                await use()
        with pytest.raises(ChannelMoved):
            receiver.receive_nowait()
        with pytest.raises(ChannelMoved):
            async for _ in receiver:
                pass
        receiver.close()
        sender.finish()


async def test_a_task_that_waits_on_a_half_gets_channel_moved_when_it_is_sent_away() -> None:
    async with joined(GiveReceiver[int]) as (client, _):
        sender, receiver = channel(int)
        waiting = asyncio.create_task(receiver.receive())
        await asyncio.sleep(0)
        await client.entrypoint.send(GiveReceiver(receiver))
        with pytest.raises(ChannelMoved):
            await waiting
        sender.finish()


async def test_a_task_that_waits_on_the_remaining_half_continues_over_the_network() -> None:
    async with joined(GiveSender[int]) as (client, server):
        sender, receiver = channel(int)
        waiting = asyncio.create_task(receiver.receive())
        await asyncio.sleep(0)
        await client.entrypoint.send(GiveSender(sender))
        theirs = (await server.entrypoint.receive()).half
        async with theirs:
            await theirs.send(7)
        assert await waiting == 7


async def test_a_networked_half_cannot_be_sent_on() -> None:
    async with joined(GiveSender[int]) as (client, server):
        sender, receiver = channel(int)
        await client.entrypoint.send(GiveSender(sender))
        theirs = (await server.entrypoint.receive()).half
        with pytest.raises(EncodeError, match="make a new channel and copy the messages"):
            await client.entrypoint.send(GiveSender(theirs))
        await theirs.send(1)  # it is still usable
        assert await receiver.receive() == 1
        theirs.finish()
        receiver.close()


@pytest.mark.parametrize("other", ["same", "both"])
async def test_a_channel_can_be_in_a_message_once(other: str) -> None:
    async with joined(Any) as (client, _):
        sender, receiver = channel(int)
        with pytest.raises(EncodeError, match="a half twice, nor both halves"):
            await client.entrypoint.send([sender, sender if other == "same" else receiver])
        await sender.send(1)
        assert await receiver.receive() == 1
        assert client.statistics()["channels"] == 1
        sender.finish()


async def test_a_half_that_has_ended_cannot_be_sent() -> None:
    async with joined(Any) as (client, _):
        for end in (Sender.finish, Sender.cancel):
            sender, receiver = channel(int)
            end(sender)
            with pytest.raises(ChannelClosed, match="send one that is open"):
                await client.entrypoint.send(GiveSender(sender))
            receiver.close()
            with pytest.raises(ChannelClosed):
                await client.entrypoint.send(GiveReceiver(receiver))
        used, answer = oneshot(int)
        await used.send(1)
        with pytest.raises(ChannelClosed):
            await client.entrypoint.send(GiveSender(used))
        assert await answer.receive() == 1


async def test_a_message_that_cannot_be_sent_moves_no_half() -> None:
    async with joined(Ask) as (client, _):
        reply, answer = oneshot(str)
        with pytest.raises(EncodeError):
            await client.entrypoint.send(Ask(object(), reply))  # type: ignore[arg-type]
        await reply.send("still here")
        assert await answer.receive() == "still here"


async def test_headers_and_mode_of_a_channel_go_with_it() -> None:
    async with joined(GiveReceiver[int]) as (client, server):
        sender, receiver = channel(int, mode=Mode.UNORDERED, headers={"name": "täglich"})
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        assert theirs.headers.text("name") == sender.headers.text("name") == "täglich"
        sender.finish()
        theirs.close()


# -- repr ------------------------------------------------------------------------------------------


def test_a_local_half_names_its_mode_and_state() -> None:
    sender, receiver = channel(int, mode=Mode.UNORDERED)
    assert repr(sender) == "<Sender channel=local mode=unordered open>"
    assert repr(receiver) == "<Receiver channel=local mode=unordered open>"
    sender.finish()
    assert repr(sender) == "<Sender channel=local mode=unordered finished>"
    assert repr(receiver) == "<Receiver channel=local mode=unordered finished>"
    receiver.close()
    assert repr(receiver) == "<Receiver channel=local mode=unordered closed>"
    sender, receiver = oneshot(int)
    sender.cancel()
    assert repr(sender) == "<Sender channel=local mode=ordered cancelled>"
    assert repr(receiver) == "<Receiver channel=local mode=ordered cancelled>"
    sender, receiver = channel(int)
    receiver.close()
    assert repr(sender) == "<Sender channel=local mode=ordered receiver closed>"


async def test_a_networked_half_names_its_channel_mode_and_state() -> None:
    async with joined(GiveReceiver[int]) as (client, server):
        assert repr(client.entrypoint) == "<Sender channel=entrypoint mode=ordered open>"
        assert repr(server.entrypoint) == "<Receiver channel=entrypoint mode=unknown open>"
        sender, receiver = channel(int, mode=Mode.UNRELIABLE)
        await client.entrypoint.send(GiveReceiver(receiver))
        theirs = (await server.entrypoint.receive()).half
        assert repr(sender) == "<Sender channel=client#1> mode=unreliable open>"
        assert repr(receiver) == "<Receiver channel=client#1> mode=unreliable moved>"
        assert repr(theirs) == "<Receiver channel=client#1> mode=unknown open>"
        theirs.close()
        await eventually(lambda: "receiver closed" in repr(sender), "the sender gets the end")
        assert repr(sender) == "<Sender channel=client#1> mode=unreliable receiver closed>"
        assert repr(theirs) == "<Receiver channel=client#1> mode=unknown closed>"
    assert repr(client.entrypoint) == "<Sender channel=entrypoint mode=ordered finished>"


async def test_only_the_peer_knows_the_mode_of_a_sender_that_it_holds() -> None:
    async with joined(GiveSender[int]) as (client, server):
        sender, receiver = channel(int, mode=Mode.UNORDERED)
        await client.entrypoint.send(GiveSender(sender))
        assert repr(receiver) == "<Receiver channel=client#0< mode=unknown open>"
        assert repr(sender) == "<Sender channel=client#0< mode=unordered moved>"
        theirs = (await server.entrypoint.receive()).half
        assert repr(theirs) == "<Sender channel=client#0< mode=unordered open>"
        theirs.finish()
        receiver.close()


@pytest.mark.parametrize("mode", ["unreliable", "UNRELIABLE", 1, None, Mode])
def test_a_mode_that_is_not_a_mode_is_a_type_error_at_the_call(mode: Any) -> None:
    with pytest.raises(TypeError, match=r"mode is a Mode such as .*, not "):
        channel(int, mode=mode)


@pytest.mark.parametrize("kind", [Sender, Receiver])
def test_a_half_is_made_by_a_channel_and_not_by_its_class(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"made by channel\(\) or oneshot\(\)"):
        kind()


# -- calls -----------------------------------------------------------------------------------------


async def test_a_call_returns_the_one_answer() -> None:
    async with joined(Ask) as (client, server):

        async def answer() -> None:
            asked = await server.entrypoint.receive()
            await asked.reply.send(asked.text.upper())

        task = asyncio.create_task(answer())
        assert await client.entrypoint.call(Ask, text="hi", timeout=60) == "HI"
        await task


async def test_a_call_that_is_not_answered_in_time_closes_the_answers_channel() -> None:
    async with joined(Ask) as (client, server):
        with pytest.raises(TimeoutError):
            await client.entrypoint.call(Ask, text="hi", timeout=0.01)
        asked = await server.entrypoint.receive()
        await eventually(lambda: not asked.reply._port.is_open(), "the answer's channel is closed")
        with pytest.raises(ReceiverClosed) as caught:
            await asked.reply.send("late")
        assert caught.value.payload == "late"


@pytest.mark.parametrize(
    ("end", "error"), [(Sender.finish, EndOfChannel), (Sender.cancel, ChannelCancelled)]
)
async def test_a_call_raises_the_end_of_its_reply_channel(end: Any, error: type[Exception]) -> None:
    async with joined(Ask) as (client, server):
        calling = asyncio.create_task(client.entrypoint.call(Ask, text="hi"))
        end((await server.entrypoint.receive()).reply)
        with pytest.raises(error):
            await calling


async def test_a_call_on_a_closed_connection_raises_and_leaves_nothing_open() -> None:
    async with joined(Ask) as (client, _):
        await client.close()
        with pytest.raises(ConnectionLost):
            await client.entrypoint.call(Ask, text="hi")
        gc.collect()


async def test_a_call_needs_exactly_one_field_for_the_answer() -> None:
    tx, rx = channel(Any)
    other, _ = oneshot(str)
    with pytest.raises(TypeError, match="exactly one unfilled Sender field; Tell has 0"):
        await tx.call(Tell, text="x")
    with pytest.raises(TypeError, match="AskTwice has 2"):
        await tx.call(AskTwice)
    with pytest.raises(TypeError, match="Ask has 0"):
        await tx.call(Ask, text="x", reply=other)
    calling = asyncio.create_task(tx.call(AskTwice, first=other))
    asked: Any = await rx.receive()
    await asked.second.send(b"bytes")
    assert await calling == b"bytes"
    other.finish()
    tx.finish()


async def test_a_call_without_a_field_it_needs_raises_and_leaves_nothing_open() -> None:
    tx, rx = channel(Any)
    with pytest.raises(TypeError, match="text"):
        await tx.call(Ask)
    gc.collect()
    tx.finish()
    rx.close()


async def test_many_messages_are_sent_in_order_and_counted() -> None:
    tx, rx = channel(int, capacity=10_000)
    assert await tx.send_many(range(5_000)) == 5_000
    tx.finish()
    assert [number async for number in rx] == list(range(5_000))


async def test_a_batch_that_fails_says_how_much_of_it_was_sent() -> None:
    tx, rx = channel(int, capacity=3)
    with pytest.raises(TimeoutError) as late:
        await tx.send_many(range(10), timeout=0.01)
    assert late.value.__notes__ == ["3 messages were sent before"]
    assert await rx.receive_many() == [0, 1, 2]
    rx.close()
    with pytest.raises(ReceiverClosed) as closed:
        await tx.send_many([7])
    assert closed.value.__notes__ == ["0 messages were sent before"]
    assert closed.value.payload == 7


async def test_a_loop_or_block_for_threads_says_what_to_write() -> None:
    sender, receiver = channel(int)
    uses: list[Any] = [iter, list, contextlib.ExitStack().enter_context]
    for use in uses:
        with pytest.raises(
            TypeError, match=r"in a thread, use aqueduct\.blocking\.Receiver\(half\)"
        ):
            use(receiver)
    with pytest.raises(TypeError, match=r"write `async with`.*aqueduct\.blocking\.Sender\(half\)"):
        uses[-1](sender)
    sender.finish()
    receiver.close()
