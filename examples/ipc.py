"""Request and answer with ScalableIPC: no connections, and each message is taken at most once.

An answer is a message to the address that the question came from. The asking side matches answers
to questions by a number. A question that its receiver has certainly not processed, or one that may
be processed twice, is sent again.
"""

import asyncio
import itertools
from collections.abc import Callable

import msgspec

import aqueduct
from aqueduct import ipc


class Question(msgspec.Struct, tag=True):
    number: int
    text: str


class Answer(msgspec.Struct, tag=True):
    number: int
    text: str


Either = Question | Answer


async def answer_questions(endpoint: ipc.Endpoint[Either], answer: Callable[[str], str]) -> None:
    async for message in endpoint:
        question = message.payload
        if isinstance(question, Question):
            reply = Answer(question.number, answer(question.text))
            try:
                await endpoint.send(message.source, reply, timeout=1)
            except aqueduct.DeliveryError as error:
                print("the answer was not delivered:", type(error).__name__)


class Asker:
    """Asks other endpoints, as a task receives the answers."""

    def __init__(self, endpoint: ipc.Endpoint[Either]) -> None:
        self.endpoint = endpoint
        self.waiting: dict[int, asyncio.Future[str]] = {}
        self.numbers = itertools.count(1)

    async def receive_answers(self) -> None:
        async for message in self.endpoint:
            answer = message.payload
            future = self.waiting.get(answer.number)
            if isinstance(answer, Answer) and future is not None and not future.done():
                future.set_result(answer.text)

    async def ask(self, to: str, text: str, *, seconds: float, again: float = 0.5) -> str:
        """Return the answer; asks again, because questions here may be answered twice."""
        number = next(self.numbers)
        future = self.waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        await self.endpoint.send(to, Question(number, text), timeout=again)
                        return await asyncio.wait_for(asyncio.shield(future), again)
                    except (aqueduct.PeerRestarted, TimeoutError):
                        continue  # the process that had the question has ended, or is silent
        finally:
            del self.waiting[number]


async def main() -> None:
    async with (
        ipc.Endpoint("udp://127.0.0.1:0", Either) as server,
        ipc.Endpoint("udp://127.0.0.1:0", Either) as client,
    ):
        answering = asyncio.create_task(answer_questions(server, str.upper))
        asker = Asker(client)
        receiving = asyncio.create_task(asker.receive_answers())
        answers = await asyncio.gather(
            *(asker.ask(server.address, text, seconds=5) for text in ("one", "two", "three"))
        )
        print(answers)
        answering.cancel()
        receiving.cancel()


if __name__ == "__main__":
    asyncio.run(main())
