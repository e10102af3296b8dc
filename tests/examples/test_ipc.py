"""Request and answer over ScalableIPC, when the side that answers restarts."""

from __future__ import annotations

import asyncio

import pytest

from aqueduct import ipc
from examples.ipc import Asker, Either, Question, answer_questions

SERVER = "local://answers"


async def test_a_question_is_answered_by_the_next_process_if_the_first_one_ends() -> None:
    async with asyncio.timeout(60), ipc.Endpoint("local://asker", Either) as client:
        asker = Asker(client)
        receiving = asyncio.create_task(asker.receive_answers())
        async with ipc.Endpoint(SERVER, Either) as first:
            asking = asyncio.create_task(asker.ask(SERVER, "why?", seconds=50, again=0.1))
            message = await first.receive()
            assert message.payload == Question(1, "why?")
        async with ipc.Endpoint(SERVER, Either) as second:
            answering = asyncio.create_task(answer_questions(second, str.upper))
            assert await asking == "WHY?"
            assert await asker.ask(SERVER, "again?", seconds=50) == "AGAIN?"
            answering.cancel()
        receiving.cancel()
        assert asker.waiting == {}


async def test_a_question_that_nobody_answers_times_out() -> None:
    async with asyncio.timeout(60), ipc.Endpoint("local://asker", Either) as client:
        asker = Asker(client)
        with pytest.raises(TimeoutError):
            await asker.ask("local://nobody", "hello?", seconds=0.05, again=0.02)
        assert asker.waiting == {}


async def test_an_answer_to_an_asker_that_has_left_ends_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with asyncio.timeout(60), ipc.Endpoint(SERVER, Either) as server:
        answering = asyncio.create_task(answer_questions(server, str.upper))
        async with ipc.Endpoint("local://leaver", Either) as leaver:
            await leaver.send(SERVER, Question(1, "bye"))
        async with ipc.Endpoint("local://asker", Either) as client:
            asker = Asker(client)
            receiving = asyncio.create_task(asker.receive_answers())
            assert await asker.ask(SERVER, "still there?", seconds=50) == "STILL THERE?"
            receiving.cancel()
        answering.cancel()
    assert "the answer was not delivered" in capsys.readouterr().out
