"""A streaming upload: the content is one channel, the server's progress reports are another."""

import asyncio
import hashlib

import msgspec

import aqueduct
from aqueduct import Connection, Receiver, Sender

CHUNK = 64 * 1024
CONTENT = bytes(range(256)) * 16 * 1024  # 4 MiB


class Upload(msgspec.Struct):
    name: str
    size: int
    content: Receiver[bytes]
    progress: Sender[int]
    stored: Sender[str]


async def serve(connection: Connection[Upload]) -> None:
    async for upload in connection.entrypoint:
        try:
            await store(upload)
        except aqueduct.ChannelError as error:  # the client cancelled the upload
            print(f"{upload.name} was not stored: {error}")


async def store(upload: Upload) -> None:
    digest, size, reported = hashlib.sha256(), 0, 0
    async with upload.content, upload.progress, upload.stored:
        async for chunk in upload.content:  # raises ChannelCancelled if the client cancels
            digest.update(chunk)
            size += len(chunk)
            if size - reported >= upload.size // 4:
                reported = size
                await upload.progress.send(size)
        await upload.stored.send(digest.hexdigest())


async def upload(address: str) -> None:
    async with aqueduct.connect(address, Upload, trust=aqueduct.dev_trust()) as connection:
        content, theirs = aqueduct.channel(bytes)
        their_progress, progress = aqueduct.channel(int)
        their_answer, stored = aqueduct.oneshot(str)
        await connection.entrypoint.send(
            Upload("numbers.bin", len(CONTENT), theirs, their_progress, their_answer)
        )

        async def watch() -> None:
            async for size in progress:
                print(f"the server has {100 * size // len(CONTENT)} %")

        watching = asyncio.create_task(watch())
        async with content:  # leaving the block finishes the channel; an exception cancels it
            for start in range(0, len(CONTENT), CHUNK):
                await content.send(CONTENT[start : start + CHUNK])  # waits while the server is slow
        digest = await stored.receive()
        await watching
        print("stored intact:", digest == hashlib.sha256(CONTENT).hexdigest())


async def main() -> None:
    async with aqueduct.serve("127.0.0.1:0", Upload, tls=aqueduct.dev_tls()) as server:
        serving = asyncio.create_task(server.run(serve))
        await upload(server.address)
        serving.cancel()


asyncio.run(main())
