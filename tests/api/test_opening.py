"""What opens when it is awaited or entered."""

from __future__ import annotations

from types import TracebackType

from aqueduct.api.opening import Opening


class Door(Opening[str]):
    def __init__(self) -> None:
        self.opened = 0
        self.left: list[str | None] = []
        super().__init__(self._make)

    async def _make(self) -> str:
        self.opened += 1
        return "room"

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.left.append(self._opened)


async def test_nothing_opens_before_it_is_awaited_or_entered() -> None:
    door = Door()
    assert door.opened == 0
    assert await door == "room"
    assert door.opened == 1
    assert door._opened is None  # whoever awaits it closes it


async def test_a_block_that_entered_it_leaves_what_was_opened() -> None:
    door = Door()
    async with door as room:
        assert room == "room"
        assert door.left == []
    assert door.opened == 1
    assert door.left == ["room"]
