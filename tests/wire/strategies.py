"""Random frames and sequences for the properties of the wire format."""

from itertools import pairwise

from hypothesis import strategies as st

from aqueduct.wire.frames import (
    AckNackUnreliable,
    AckReliable,
    AckVersion,
    Attachment,
    CancelSender,
    CloseReceiver,
    ConnectionHeaders,
    Dequeued,
    FinishSender,
    ForgetChannel,
    Frame,
    MessageFrame,
    RouteTo,
    SentUnreliable,
    Version,
)
from aqueduct.wire.primitives import MAX_VARINT, HeaderPairs
from aqueduct.wire.ranges import RangeSet

# Uniform numbers would nearly all have ten bytes: choose the length first.
varints: st.SearchStrategy[int] = st.integers(0, 64).flatmap(
    lambda bits: st.integers(0, min(2**bits, MAX_VARINT))
)

headers: st.SearchStrategy[HeaderPairs] = st.lists(
    st.tuples(st.binary(max_size=6), st.binary(max_size=6)), max_size=4
).map(tuple)

attachments = st.lists(
    st.builds(Attachment, varints.filter(bool), headers),
    max_size=4,
    unique_by=lambda attachment: attachment.channel,
).map(tuple)

messages = st.builds(MessageFrame, varints, headers, attachments, st.binary(max_size=300))

small_ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12).map(
    lambda pairs: RangeSet((start, start + length) for start, length in pairs)
)

connection_frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Version, st.binary(max_size=64)),
    st.just(AckVersion()),
    st.builds(ConnectionHeaders, headers),
)

channel_frames: st.SearchStrategy[Frame] = st.one_of(
    messages,
    st.builds(SentUnreliable, varints),
    st.builds(FinishSender, varints),
    st.just(CancelSender()),
    small_ranges.filter(bool).map(lambda found: AckReliable(tuple(found.ranges()))),
    st.tuples(st.integers(0, 400), st.lists(st.integers(1, 400), min_size=1, max_size=5)).map(
        lambda lengths: AckNackUnreliable((lengths[0], *lengths[1]))
    ),
    st.just(CloseReceiver()),
    st.just(ForgetChannel()),
    st.builds(Dequeued, varints),
)


@st.composite
def plain_runs(draw: st.DrawFn) -> list[Frame]:
    """Draw consecutive plain messages, as on a busy channel."""
    first = draw(varints.filter(lambda number: number < 2**63))
    payloads = draw(st.lists(st.binary(max_size=200), min_size=1, max_size=8))
    return [MessageFrame(first + at, (), (), payload) for at, payload in enumerate(payloads)]


@st.composite
def sequences(draw: st.DrawFn) -> list[Frame]:
    """Draw frames in an order that a stream may have."""
    frames = draw(st.lists(connection_frames, max_size=3))
    routed = draw(st.booleans())
    if frames and not routed:
        return frames
    frames.append(RouteTo(draw(varints)))
    groups = st.one_of(channel_frames.map(lambda frame: [frame]), plain_runs())
    for group in draw(st.lists(groups, max_size=6)):
        frames += group
    return frames


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return the same bytes in chunks, some of which may be empty."""
    bounds = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:stop] for start, stop in pairwise(bounds)]
