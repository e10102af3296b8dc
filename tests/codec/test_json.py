"""JSON payloads: the contract of a codec, and other JSON parsers."""

from __future__ import annotations

import json
from typing import Any

from aqueduct.codec import Codec, JsonCodec, no_channels
from tests.codec.contract import ChannelCodecContract, Refusing


class TestJsonCodec(ChannelCodecContract):
    content_type = "application/json"
    samples = (
        (int, -17),
        (str, "väter"),
        (type(None), None),
        (float, 0.25),
        (list[int], [1, 2]),
        (dict[str, set[int]], {"a": {1}}),
        (bytearray, bytearray(b"kept")),
        (Refusing, Refusing(4)),
        (Any, {"a": [1, "text", None]}),
    )
    rejected = ((Any, object()), (Any, [1, {2: object()}]))
    malformed = (
        (int, b""),
        (int, b'"no"'),
        (str, b"\xff"),
        (list[int], b"[1"),
        (Refusing, b'{"number": "four"}'),
        (Any, b"{} {}"),
    )

    def make(self, kind: Any) -> Codec[Any]:
        return JsonCodec(kind)


def test_a_struct_is_an_object_that_any_json_parser_reads() -> None:
    codec: JsonCodec[Refusing] = JsonCodec(Refusing)
    payload, _ = codec.encode(Refusing(4))
    assert json.loads(payload) == {"number": 4}
    assert codec.decode(json.dumps({"number": 5}).encode(), no_channels) == Refusing(5)
