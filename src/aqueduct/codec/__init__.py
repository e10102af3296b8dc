"""Codecs: how a typed value becomes the payload of a message and its attachments, and back.

`Codec` is what a channel needs of a codec. `MessagePackCodec` is the default, `JsonCodec` writes
payloads that other languages and people can read, `RawCodec` passes bytes through.
"""

from aqueduct.codec.base import ChannelHalf, Claim, Codec, CodecClass, no_channels
from aqueduct.codec.json import JsonCodec
from aqueduct.codec.messagepack import MessagePackCodec, codec_for
from aqueduct.codec.raw import RawCodec
from aqueduct.codec.registry import register

__all__ = [
    "ChannelHalf",
    "Claim",
    "Codec",
    "CodecClass",
    "JsonCodec",
    "MessagePackCodec",
    "RawCodec",
    "codec_for",
    "no_channels",
    "register",
]
