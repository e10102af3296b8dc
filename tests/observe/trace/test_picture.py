from aqueduct.observe.trace.picture import DELIVERED, LOST, NACKED, Marks


def test_a_few_messages_have_a_mark_each_and_many_a_count() -> None:
    fates = [DELIVERED] * 2 + [NACKED] + [DELIVERED] * 300
    assert Marks().draw(fates).plain == "✓✓✗✓\N{MULTIPLICATION SIGN}300 "
    assert Marks(ascii_only=True).draw(fates).plain == "++x+*300 "


def test_a_channel_is_described_in_one_line() -> None:
    title = Marks().title("client#1>", "client", "server", "ordered", "finished")
    assert title.plain == "client#1>  client → server  ordered, finished"


def test_the_legend_explains_the_marks_that_occur() -> None:
    text = Marks().legend({DELIVERED: 3, LOST: 1}).plain
    assert "3  delivered" in text
    assert "1  lost with a channel above it" in text
    assert "nacked" not in text
