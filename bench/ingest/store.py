"""The interface of a store of records: its server, and one of its producers."""

from collections.abc import Sequence

from bench.network.machine import peak_megabytes, process_seconds
from bench.network.peer import Json, Setting


class Server:
    """Makes records durable, under the directory in the options."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.directory: str = setting.options["directory"]

    async def start(self) -> Json:
        """Start; return what producers need to connect, and a remark for the report."""
        raise NotImplementedError

    async def stored(self) -> int:
        """Return the number of stored records."""
        raise NotImplementedError

    @property
    def peak(self) -> float:
        """Return its peak memory, in 10^6 bytes."""
        return peak_megabytes()

    @property
    def processor(self) -> float:
        """Return the processor time it used, in seconds."""
        return process_seconds()

    async def stop(self) -> None:
        """Close cleanly."""


class Producer:
    """Sends records in the fastest way that its API offers."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    async def open(self, info: Json) -> None:
        """Connect to what the server's `start` returned."""
        raise NotImplementedError

    async def pour(self, payloads: Sequence[bytes]) -> None:
        """Send records one by one; wait only for back pressure."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Wait until everything that was sent is stored."""
        raise NotImplementedError

    async def deliver(self, payload: bytes) -> None:
        """Send one record, and wait until it is stored."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close cleanly."""
