"""A streaming upload: one channel for the content, another for the server's progress reports."""

import asyncio
import hashlib

import aqueduct
from aqueduct import Receiver, Request, Sender

CHUNK = 64 * 1024
CONTENT = bytes(range(256)) * 16 * 1024  # 4 MiB


class Upload(Request[str]):
    name: str
    size: int
    content: Receiver[bytes]
    progress: Sender[int]


async def store(upload: Upload) -> str:
    """Return the digest of what was stored. A client that cancels ends this upload only."""
    digest, size, reported = hashlib.sha256(), 0, 0
    async with upload.progress:
        async for chunk in upload.content:  # raises ChannelCancelled if the client cancels
            digest.update(chunk)
            size += len(chunk)
            if size - reported >= upload.size // 4:
                reported = size
                await upload.progress.send(size)
    return digest.hexdigest()


async def upload(address: str) -> None:
    async with aqueduct.connect(address, Upload, trust=aqueduct.dev_trust()) as connection:
        content, theirs = aqueduct.channel(bytes)
        their_progress, progress = aqueduct.channel(int)

        async def watch() -> None:
            async for size in progress:
                print(f"the server has {100 * size // len(CONTENT)} %")

        request = Upload("numbers.bin", len(CONTENT), theirs, their_progress)
        storing = asyncio.create_task(connection.entrypoint.call(request))
        watching = asyncio.create_task(watch())
        async with content:  # the end of the block finishes the channel, an exception cancels it
            for start in range(0, len(CONTENT), CHUNK):
                await content.send(CONTENT[start : start + CHUNK])  # waits under back pressure
        digest = await storing
        await watching
        print("stored intact:", digest == hashlib.sha256(CONTENT).hexdigest())


async def main() -> None:
    async with aqueduct.serve("127.0.0.1:0", Upload, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.serve(store))
        await upload(server.address)
        serving.cancel()


asyncio.run(main())
