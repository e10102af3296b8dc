"""The contract of a codec: tests that every implementation of `aqueduct.codec.Codec` must pass.

A test file derives a class ``Test…`` from `CodecContract`, or from `ChannelCodecContract` if values
may hold channel halves, and says which values the codec takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec
import pytest

import aqueduct
from aqueduct import DecodeError, EncodeError, Receiver, Sender
from aqueduct.codec import ChannelHalf, Codec, no_channels

MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]+")


class CodecContract:
    """What each codec promises for values without channel halves."""

    content_type: ClassVar[str]
    samples: ClassVar[Sequence[tuple[Any, Any]]]
    """Types, each with a value that must come back equal."""
    rejected: ClassVar[Sequence[tuple[Any, Any]]]
    """Types, each with a value that cannot be encoded."""
    malformed: ClassVar[Sequence[tuple[Any, bytes]]]
    """Types, each with a payload that is not a value of the type; empty if every payload is."""

    def make(self, kind: Any) -> Codec[Any]:
        """Return a codec of a type."""
        raise NotImplementedError

    def test_the_content_type_is_a_media_type(self) -> None:
        codec = self.make(self.samples[0][0])
        assert codec.content_type == self.content_type
        assert MEDIA_TYPE.fullmatch(codec.content_type)

    def test_a_value_round_trips(self) -> None:
        for kind, value in self.samples:
            codec = self.make(kind)
            payload, halves = codec.encode(value)
            assert type(payload) is bytes
            assert halves == []
            assert codec.decode(payload, no_channels) == value

    def test_an_identity_codec_passes_payloads_through(self) -> None:
        for kind, value in self.samples:
            codec = self.make(kind)
            payload, _ = codec.encode(value)
            if codec.is_identity:
                assert payload == value
                assert codec.decode(payload, no_channels) is payload

    def test_many_payloads_are_decoded_in_order(self) -> None:
        for kind, value in self.samples:
            codec = self.make(kind)
            payload, _ = codec.encode(value)
            assert codec.decode_many([]) == ([], None)
            assert codec.decode_many([payload, payload]) == ([value, value], None)

    def test_one_codec_decodes_what_another_of_its_type_encoded(self) -> None:
        for kind, value in self.samples:
            payload, _ = self.make(kind).encode(value)
            assert self.make(kind).decode(payload, no_channels) == value

    def test_a_value_that_cannot_be_encoded_is_an_encode_error(self) -> None:
        for kind, value in self.rejected:
            with pytest.raises(EncodeError):
                self.make(kind).encode(value)

    def test_a_codec_is_usable_after_an_error(self) -> None:
        for kind, value in self.rejected:
            codec = self.make(kind)
            with pytest.raises(EncodeError):
                codec.encode(value)
            for other, sample in self.samples:
                if other is kind:
                    assert codec.decode(codec.encode(sample)[0], no_channels) == sample

    def test_a_malformed_payload_is_a_decode_error(self) -> None:
        for kind, payload in self.malformed:
            with pytest.raises(DecodeError):
                self.make(kind).decode(payload, no_channels)

    def test_decoding_many_stops_at_a_malformed_payload(self) -> None:
        for kind, payload in self.malformed:
            codec = self.make(kind)
            for other, sample in self.samples:
                if other is kind:
                    good, _ = codec.encode(sample)
                    values, failed = codec.decode_many([good, payload, good])
                    assert values == [sample]
                    assert isinstance(failed, DecodeError)
                    assert codec.decode_many([good]) == ([sample], None)


class Halves(msgspec.Struct):
    """A message with channels in its fields."""

    numbers: Receiver[int]
    replies: list[Sender[str]]
    count: int = 0


class Refusing(msgspec.Struct):
    """A type whose own code raises an error that msgspec does not know."""

    number: int

    def __post_init__(self) -> None:
        if self.number == 13:
            raise KeyError("thirteen")


class ChannelCodecContract(CodecContract):
    """What a codec promises in addition for values with channel halves."""

    @pytest.fixture
    def halves(self) -> Iterator[list[Any]]:
        """Yield a receiver and two senders."""
        channels = [aqueduct.channel(int) for _ in range(3)]
        yield [channels[0].receiver, *(one.sender for one in channels[1:])]
        for sender, receiver in channels:
            sender.finish()
            receiver.close()

    def test_halves_come_back_by_the_indexes_of_their_attachments(self, halves: list[Any]) -> None:
        codec = self.make(Halves)
        value = Halves(halves[0], halves[1:], 4)
        payload, found = codec.encode(value)
        assert found == halves
        asked: list[tuple[int, type[ChannelHalf], Any]] = []

        def claim(index: int, half: type[ChannelHalf], kind: Any) -> ChannelHalf:
            asked.append((index, half, kind))
            half_found: ChannelHalf = halves[index]
            return half_found

        assert codec.decode(payload, claim) == value
        assert asked == [(0, Receiver, int), (1, Sender, str), (2, Sender, str)]

    def test_a_message_carries_only_its_own_halves(self, halves: list[Any]) -> None:
        codec = self.make(Any)
        assert codec.encode([halves[0]])[1] == halves[:1]
        with pytest.raises(EncodeError):
            codec.encode([halves[1], object()])
        assert codec.encode([halves[2]])[1] == halves[2:]
        assert codec.encode("plain")[1] == []

    def test_a_missing_attachment_is_a_decode_error(self, halves: list[Any]) -> None:
        codec = self.make(Halves)
        payload, _ = codec.encode(Halves(halves[0], []))
        with pytest.raises(DecodeError, match="attachment 0 was not sent"):
            codec.decode(payload, no_channels)
        values, failed = codec.decode_many([payload])
        assert values == []
        assert isinstance(failed, DecodeError)

    def test_an_error_of_the_types_own_code_is_the_cause_of_the_decode_error(self) -> None:
        codec = self.make(Refusing)
        payload = self.make(Any).encode({"number": 13})[0]
        with pytest.raises(DecodeError, match="thirteen") as caught:
            codec.decode(payload, no_channels)
        assert isinstance(caught.value.__cause__, KeyError)

    def test_an_unsupported_type_is_rejected_when_the_codec_is_made(self) -> None:
        with pytest.raises(TypeError, match="cannot be the type of a channel"):
            self.make(Halves | dict[str, int])
