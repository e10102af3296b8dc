"""The corpus of the fuzzer and some seeded mutations of it, without the fuzzer."""

from pathlib import Path
from random import Random

import pytest

from tests.fuzz import messages, program, qmux
from tests.fuzz.message_seeds import honest_messages
from tests.fuzz.seeds import CORPUS, forged_programs, generate, honest_programs
from tests.fuzz.targets import TARGETS

MUTATIONS = {
    "parser": 3000,
    "roundtrip": 3000,
    "connection": 1500,
    "ipc": 1500,
    "records": 1500,
    "log": 500,
    "manifest": 500,
}
MAX_BYTES_IN_GIT = 300_000


def kept(target: str) -> list[Path]:
    return sorted((CORPUS / target).iterdir())


def mutated(random: Random, inputs: list[bytes]) -> bytes:
    """Return an input with a few bytes changed, removed, duplicated or replaced."""
    data = bytearray(random.choice(inputs))
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(data))
        stop = min(at + random.randint(1, 8), len(data))
        kind = random.randrange(5)
        if kind == 0:
            data[at:stop] = random.randbytes(stop - at)
        elif kind == 1:
            del data[at:stop]
        elif kind == 2:
            data[at:at] = data[at:stop]
        elif kind == 3:
            data[at:] = random.choice(inputs)[at:]
        else:
            data[at:stop] = bytes((random.choice((0, 1, 0x7F, 0x80, 0xFF)),)) * (stop - at)
    return bytes(data[:2048])


@pytest.mark.parametrize("target", TARGETS)
def test_every_kept_input_passes(target: str) -> None:
    for path in kept(target):
        try:
            TARGETS[target](path.read_bytes())
        except BaseException as error:
            error.add_note(f"replay: tests/fuzz/fuzz.py {target} {path.relative_to(Path.cwd())}")
            raise


@pytest.mark.parametrize("target", TARGETS)
def test_mutations_of_the_kept_inputs_pass(target: str) -> None:
    random = Random(f"{target} 1")
    inputs = [path.read_bytes() for path in kept(target)]
    for _ in range(MUTATIONS[target]):
        data = mutated(random, inputs)
        try:
            TARGETS[target](data)
        except BaseException as error:
            error.add_note(f"input of {target}, in hexadecimal: {data.hex()}")
            raise


def test_the_seeds_match_the_script() -> None:
    for target, seeds in generate().items():
        written = {path.name: path.read_bytes() for path in (CORPUS / target).glob("seed-*")}
        assert written == {f"seed-{name}": data for name, data in seeds.items()}


def test_the_corpus_stays_small() -> None:
    sizes = [path.stat().st_size for target in TARGETS for path in kept(target)]
    assert sum(sizes) < MAX_BYTES_IN_GIT


def test_the_honest_seeds_end_cleanly() -> None:
    ended_early = {"refuse", "close-connection", "connection-lost"}
    for name, data in honest_programs().items():
        world = program.run(data)
        assert world.honest, name
        assert any(party.over for party in world.parties) == (name in ended_early), name


def test_the_honest_messages_end_as_named() -> None:
    """The programs are effective only if their sizes and deliveries match."""
    delivered = {"empty", "small", "pieces", "large", "both-ways", "crowd", "lost", "repeated"}
    delivered |= {
        "late",
        "new-owner",
        "trouble",
        "smaller",
        "retries",
        "reported",
        "restarted-sender",
    }
    for name, data in honest_messages().items():
        world = messages.run(data)
        assert world.honest, name
        assert (set(world.outcomes.values()) == {0}) == (name in delivered), name


def test_the_seeds_of_records_break_the_rules_of_tcp() -> None:
    reasons = [qmux.play([data]) for data in qmux.seeds().values()]
    rules = {reason.split(":")[0] for reason in reasons if reason.startswith("AQ-TCP-")}
    assert rules == {f"AQ-TCP-{number}" for number in (3, 4, 5, 6, 7, 9)}
    assert reasons.count("") >= 8, "most honest ones go on"


def test_the_forged_seeds_break_many_rules() -> None:
    """The corpus is effective only if it gets past the first check."""
    worlds = [program.run(data) for data in forged_programs().values()]
    reasons = [party.reason for world in worlds for party in world.parties]
    rules = {reason.split(":")[0] for reason in reasons if reason.startswith("AQ-")}
    assert len(rules) >= 30, sorted(rules)
