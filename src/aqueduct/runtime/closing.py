"""Closing a connection from this side: send queued messages first, within a bounded time."""

from __future__ import annotations

import asyncio
import contextlib

from aqueduct.errors import AqueductError, CloseCode
from aqueduct.runtime.connection_driver import ConnectionDriver, live_drivers
from aqueduct.runtime.receive_port import NetworkReceivePort
from aqueduct.runtime.send_port import NetworkSendPort
from aqueduct.transport.base import IMMEDIATE_CLOSE_CODES

LINGER = 3.0
"""Seconds that `Closing.close` waits for the peer to acknowledge everything that was sent."""
_INTERRUPTED = "left by an exception"
"""The close reason when the `async with` block of a connection raised."""


class Closing:
    """Closes one connection after sending what is queued on it. One instance serves one call."""

    def __init__(self, driver: ConnectionDriver) -> None:
        self._driver = driver
        self._unsent: list[NetworkSendPort] = []
        """Senders with unacknowledged messages, which `close` waits for."""

    async def close(self, code: CloseCode, reason: str, *, leaving: bool = False) -> None:
        """Send what is queued, then close the connection, within `LINGER` seconds in total.

        With ``leaving``, a client finishes its entrypoint before the close (AQ-LEAVE-1).
        """
        driver = self._driver
        if driver.is_forked:
            return  # the connection and its socket belong to the parent
        driver.check_loop()
        driver.was_closed_here = True
        transport = driver.transport
        deadline = driver.loop.time() + LINGER
        try:
            if code not in IMMEDIATE_CLOSE_CODES:
                with contextlib.suppress(TimeoutError, AqueductError):
                    async with asyncio.timeout_at(deadline):
                        # A server that sees the close before it has accepted the connection does
                        # not pass the connection to its application.
                        await driver.wait_ready()
                        await self._wait_sent()
                        # Not earlier: a server may close when the entrypoint ends.
                        if leaving and isinstance(driver.entry_port, NetworkSendPort):
                            driver.entry_port.finish()
                            driver.core.leave(transport.now())
                            transport.schedule_flush()  # the entrypoint may have ended already
                            await self._wait_closed()
            # One flush is enough: packets and timers cause those that follow.
            driver.close_soon(code, reason)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._wait_closed()
        finally:
            if not transport.is_closed:  # the task was cancelled, or the peer is silent
                driver.core.close_connection(code, reason, transport.now())
                transport.flush()
            transport.close()
            when_closed, driver.when_closed = driver.when_closed, None
            if when_closed is not None:
                await when_closed()

    async def leave(self, *, failed: bool = False) -> None:
        """Close at the end of a block; ``failed`` if the block raised.

        If the block did not raise and the server has not answered the connection yet, wait for its
        answer, and raise the error if the server refuses.
        """
        if failed:
            await self.close(CloseCode.NO_ERROR, _INTERRUPTED)  # AQ-LEAVE-2
            return
        driver = self._driver
        try:
            if not (driver.failure_was_raised or driver.was_closed_here or driver.is_forked):
                await driver.wait_ready()
        finally:
            await self.close(CloseCode.NO_ERROR, "", leaving=True)

    async def drain(self, grace: float) -> None:
        """End the entrypoint, wait up to ``grace`` seconds for all channels to end, then close."""
        driver = self._driver
        driver.check_process()
        port = driver.entry_port
        if isinstance(port, NetworkReceivePort):
            port.stop()
        elif port is not None:
            port.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while driver.ended is None and (driver.core.channel_count or not self._is_handled):
                    await driver.wait_change()
        await self.close(CloseCode.GOING_AWAY, "drained")  # AQ-DRAIN-3

    async def _wait_closed(self) -> None:
        while not self._driver.transport.is_closed:
            await self._driver.wait_change()

    async def _wait_sent(self) -> None:
        """Wait until the peer has acknowledged everything sent, or has stopped receiving."""
        transport = self._driver.transport
        transport.schedule_flush()
        while not transport.is_closed:
            await self._driver.wait_change()
            if self._is_sent():
                return

    def _is_sent(self) -> bool:
        # Called in each turn: scan all ports again only once all pending ones have caught up.
        unsent = self._unsent
        while unsent and not is_behind(unsent[-1]):
            unsent.pop()
        if not unsent:
            unsent = self._unsent = [
                port
                for port in self._driver.ports.values()
                if isinstance(port, NetworkSendPort) and is_behind(port)
            ]
        if not unsent:
            return True  # other data may be in flight, such as credit for a peer that keeps sending
        return self._driver.transport.is_drained()

    @property
    def _is_handled(self) -> bool:
        """Whether the application has handled everything that arrived on the entrypoint."""
        port = self._driver.entry_port
        return not isinstance(port, NetworkReceivePort) or port.is_handled()


def is_behind(port: NetworkSendPort) -> bool:
    """Return whether this sender has unsent or unacknowledged messages."""
    if port.ended is not None:
        return False
    return port.delivered + port.undelivered < port.sent or not port.is_open()


async def close_all() -> None:
    """Close all connections of this event loop, at the end of the program."""
    loop = asyncio.get_running_loop()
    drivers = [driver for driver in list(live_drivers) if driver.loop is loop]
    await asyncio.gather(*(Closing(driver).close(CloseCode.NO_ERROR, "") for driver in drivers))
