"""After fork() calls in the child raise at once, and the parent is not affected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aqueduct import ForkedConnectionError
from aqueduct.runtime.ports import FORKED
from tests.api.test_blocking import ran_well

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture(autouse=True)
def own_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUEDUCT_DEV_DIR", str(tmp_path))


def test_receiving_in_the_child_raises_forked_connection_error() -> None:
    with pytest.raises(ForkedConnectionError, match="connect again in the child") as caught:
        FORKED.take(7, 1, 0.0)
    assert caught.value.channel == 7


def test_ending_a_channel_in_the_child_is_a_no_op() -> None:
    FORKED.finish(7, 0.0)
    FORKED.cancel(7, 0.0)
    FORKED.close(7, 0.0)


CHILD = """
    import asyncio, os, sys, traceback
    import aqueduct
    from aqueduct import Limits
    from aqueduct.runtime.closing import Closing
    from tests.api.joined import GiveReceiver, joined

    def forked(use):
        # What a coroutine does before it first waits; in the child it must not wait at all.
        try:
            use.send(None) if asyncio.iscoroutine(use) else use()
        except aqueduct.ForkedConnectionError as error:
            assert "connect again in the child process" in str(error)
        else:
            raise AssertionError("nothing was raised")

    def child(client, server, sender, theirs):
        forked(client.entrypoint.send(None))
        forked(sender.send(b"x"))
        forked(sender.flush())
        forked(lambda: sender.send_nowait(b"x"))
        forked(theirs.receive())
        forked(theirs.receive_many())
        forked(theirs.receive_message())
        forked(theirs.receive_nowait)
        forked(client.wait_closed())
        forked(client.drain(60))
        sender.finish()
        sender.cancel()
        theirs.close()
        for end in (client.close(), Closing(client._driver).leave()):
            try:
                end.send(None)
            except StopIteration:
                pass
            else:
                raise AssertionError("the child waits")

    async def main():
        limits = Limits(channel_window=10_000)
        async with joined(GiveReceiver[bytes], limits=limits) as (client, server):
            sender, receiver = aqueduct.channel()
            for number in range(30):
                await sender.send(b"%02d" % number + bytes(1_000))
            await client.entrypoint.send(GiveReceiver(receiver))
            theirs = (await server.entrypoint.receive()).half
            first = await theirs.receive()
            assert theirs.statistics()["queued"] and sender.statistics()["queued"]
            pid = os.fork()
            if pid == 0:
                try:
                    child(client, server, sender, theirs)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(7)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status == 7, status
            sender.finish()
            rest = [payload async for payload in theirs]
            assert [int(one[:2]) for one in (first, *rest)] == list(range(30))

    asyncio.run(main())
"""


def test_a_child_never_waits_and_does_not_affect_the_parent() -> None:
    ran_well(CHILD)
