"""nats-py over TLS; a third process, the broker, shares the cores.

A subscriber that cannot keep up loses messages, so it acknowledges every quarter of a window and
the publisher sends no more than a window ahead. A callback measured faster than an iterator.
"""

import asyncio
import json
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import nats

from bench.network import peer
from bench.network.measures import Manner
from bench.network.peer import Closing, Counted, Json, Setting
from bench.network.roster import find_program

WINDOW = 16 * 1024 * 1024
WINDOW_MESSAGES = 20_000
START_SECONDS = 5.0


def window(size: int) -> int:
    """The window, in messages."""
    return max(4, min(WINDOW_MESSAGES, WINDOW // size))


async def connect(address: str, context: ssl.SSLContext) -> Any:
    return await nats.connect(address, tls=context, allow_reconnect=False)


def trusting(setting: Setting) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=setting.authority)


class Server(peer.Server):
    async def start(self) -> Json:
        self._broker, address = start_broker(self.setting)
        self._wanted = self._count = self._total = 0
        self._done: asyncio.Queue[Counted] = asyncio.Queue()
        self._connection = await connect(address, trusting(self.setting))
        await self._connection.subscribe(
            "push",
            cb=self._push,
            pending_msgs_limit=4 * WINDOW_MESSAGES,
            pending_bytes_limit=4 * WINDOW,
        )
        await self._connection.subscribe("echo", cb=self._echo)
        await self._connection.flush()
        return {"address": address, "broker": self._broker.pid}

    async def receive(self, manner: Manner, size: int, count: int) -> Counted:
        self._wanted, self._count, self._total = count, 0, 0
        return await self._done.get()

    async def stop(self) -> None:
        await self._connection.close()
        self._broker.terminate()
        self._broker.wait()

    async def _echo(self, message: Any) -> None:
        await message.respond(message.data)

    async def _push(self, message: Any) -> None:
        self._count += 1
        self._total += len(message.data)
        if self._count % (window(len(message.data)) // 4) == 0:
            await self._connection.publish("credit", b"")
        if self._count == self._wanted:
            self._done.put_nowait(Counted(self._count, self._total, time.monotonic_ns()))


class Client(peer.Client):
    async def open(self, info: Json) -> None:
        self._address = info["address"]
        self._trust = trusting(self.setting)
        self._connection = await connect(self._address, self._trust)
        self._credit = asyncio.Semaphore(0)
        await self._connection.subscribe("credit", cb=self._more)
        await self._connection.flush()

    async def send(self, manner: Manner, payload: bytes, count: int) -> None:
        step = window(len(payload)) // 4
        publish = self._connection.publish
        ahead = 4 * step
        for number in range(count):
            if number >= ahead:
                await self._credit.acquire()
                ahead += step
            await publish("push", payload)
        await self._connection.flush()
        # Discard unused acks before the next stream.
        for _ in range(count // step - (ahead // step - 4)):
            await self._credit.acquire()

    async def trip(self, payload: bytes) -> bytes:
        return await ask(self._connection, payload)

    async def fresh(self, payload: bytes) -> tuple[bytes, Closing]:
        connection = await connect(self._address, self._trust)
        return await ask(connection, payload), connection.close

    async def close(self) -> None:
        await self._connection.close()

    async def _more(self, message: Any) -> None:
        self._credit.release()


async def ask(connection: Any, payload: bytes) -> bytes:
    answer: bytes = (await connection.request("echo", payload)).data
    return answer


def the_broker() -> str:
    """Return the path of the program."""
    program = find_program("nats-server")
    if program is None:
        raise RuntimeError("there is no nats-server on PATH")
    return program


def start_broker(
    setting: Setting, further: Json | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    program = the_broker()
    with socket.socket() as chosen:
        chosen.bind((peer.HOST, 0))
        port = chosen.getsockname()[1]
    settings = {
        "host": peer.HOST,
        "port": port,
        "tls": {"cert_file": setting.certificate, "key_file": setting.key},
        **(further or {}),
    }
    path = Path(setting.certificate).with_name("nats.json")
    path.write_text(json.dumps(settings))
    silent = subprocess.DEVNULL
    broker = subprocess.Popen([program, "-c", str(path)], stdout=silent, stderr=silent)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((peer.HOST, port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return broker, f"tls://{peer.HOST}:{port}"
