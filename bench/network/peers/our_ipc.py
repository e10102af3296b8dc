"""ScalableIPC through its public API: ``await endpoint.send``, and ``async for``."""

import asyncio

import aqueduct
from aqueduct import ipc
from bench.network import peer
from bench.network.peer import Json


class Server(peer.Server):
    async def start(self) -> Json:
        self._count = self._total = 0
        address = self.setting.options["server"]
        shown = aqueduct.tls(self.setting.certificate, self.setting.key)
        self._endpoint = ipc.Endpoint(address, tls=shown if is_tls(address) else None)
        await self._endpoint.open()
        self._taking = asyncio.create_task(self._take())
        return {"address": self._endpoint.address}

    @property
    def taken(self) -> tuple[int, int]:
        return self._count, self._total

    async def stop(self) -> None:
        await self._endpoint.close()
        await self._taking

    async def _take(self) -> None:
        async for message in self._endpoint:
            self._count += 1
            self._total += len(message.payload)


class Client(peer.Client):
    async def open(self, info: Json) -> None:
        self._address = info["address"]
        address = self.setting.options["client"]
        trust = aqueduct.trust(self.setting.authority)
        self._endpoint = ipc.Endpoint(address, trust=trust if is_tls(address) else None)
        await self._endpoint.open()

    async def deliver(self, payload: bytes) -> None:
        await self._endpoint.send(self._address, payload)

    async def close(self) -> None:
        await self._endpoint.close()


def is_tls(address: str) -> bool:
    return address.startswith("tls:")
