"""What everything that stores records has to do: its server, and one of its producers."""

from collections.abc import Sequence

from bench.network.machine import peak_megabytes, process_seconds
from bench.network.peer import Json, Setting


class Server:
    """Makes records durable, under the directory in the options."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.directory: str = setting.options["directory"]

    async def start(self) -> Json:
        """Be ready; returns what producers need to know, and a remark for the report."""
        raise NotImplementedError

    async def stored(self) -> int:
        """How many records are there."""
        raise NotImplementedError

    @property
    def peak(self) -> float:
        """The most memory it ever had, in 10^6 bytes."""
        return peak_megabytes()

    @property
    def processor(self) -> float:
        """Seconds of processor time that it had."""
        return process_seconds()

    async def stop(self) -> None:
        """End cleanly."""


class Producer:
    """Sends records, in the way that is fastest for its users."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    async def open(self, info: Json) -> None:
        """Connect to what the server's `start` returned."""
        raise NotImplementedError

    async def pour(self, payloads: Sequence[bytes]) -> None:
        """Send records, one by one, without waiting for more than room."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Wait until everything that was sent is stored."""
        raise NotImplementedError

    async def deliver(self, payload: bytes) -> None:
        """Send one record, and wait until it is stored."""
        raise NotImplementedError

    async def close(self) -> None:
        """End cleanly."""
