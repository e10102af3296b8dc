"""Runs one simulation and draws the fate of each channel and each message."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import count

from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree

from aqueduct.observe.trace.picture import DELIVERED, DROPPED, LOST, NACKED, OPEN, Marks
from aqueduct.protocol.config import Config, Limits
from aqueduct.protocol.connection import Mode
from aqueduct.protocol.events import End
from aqueduct.testing.checkers import RunFacts
from aqueduct.testing.checkers.subjects import NEVER, ChannelFacts, MessageFacts
from aqueduct.testing.faults import Faults
from aqueduct.testing.plan import WorkloadPlan
from aqueduct.testing.record import Record
from aqueduct.testing.simulation import RunOutcome, Simulation
from aqueduct.testing.transcript import transcript, transcript_hash
from aqueduct.wire.chanid import describe

COMMAND = "python -m aqueduct.testing.demo"

EXAMPLES = f"""\
examples:
  {COMMAND}               the first run that shows every feature
  {COMMAND} --seed 12     this run"""

FAULTS = Faults(
    delay=0.02, jitter=0.15, loss=0.25, recovery=0.2, split=0.3, merge=0.3, lateness=0.001
)

PLAN = WorkloadPlan(
    duration=0.8,
    turn=0.03,
    operations=3,
    max_channels=13,
    max_messages=90,
    modes=(Mode.ORDERED, Mode.UNORDERED, Mode.UNRELIABLE),
    weights=(("send", 10.0), ("burst", 1.0), ("take", 4.0), ("cancel", 0.5), ("close", 0.7)),
    attach=0.3,
    send_ahead=0.4,
    burst=8,
    sizes=(8, 40, 300),
    headers=0.1,
    oneshot=0.2,
    eager=0.5,
    take_limit=3,
    spare_entrypoint=1.0,
    unclaimed=0.0,
    drain_cancel=0.1,
    drain_close=0.1,
    lost_at=None,
    accept_delay=0.0,
    refuse=False,
    close_at=None,
    configs=(Config(limits=Limits()), Config(limits=Limits())),
)


def fate_of(message: MessageFacts) -> str:
    """Return the fate of a message at the end of the run."""
    if message.channel.lost:
        return LOST
    if message.taken < NEVER:
        return DELIVERED
    if message.acked < NEVER:
        return DROPPED
    return NACKED if message.nacked < NEVER else OPEN


def is_interesting(facts: RunFacts) -> bool:
    """Return whether a run shows all modes, all fates, nested channels and a cascading loss."""
    channels = list(facts.channels.values())
    fates = {fate_of(message) for channel in channels for message in channel.messages}
    modes = {channel.mode for channel in channels if channel.messages}
    cascade = any(
        channel.lost and channel.parent is not None and channel.parent.lost for channel in channels
    )
    deep = max(_depth(channel) for channel in channels) >= 3
    return fates == {DELIVERED, DROPPED, NACKED, LOST} and len(modes) == 3 and cascade and deep


def _depth(channel: ChannelFacts) -> int:
    return 0 if channel.parent is None else 1 + _depth(channel.parent)


def play(seed: int) -> tuple[RunOutcome[Record], RunFacts]:
    """Run one seed of the demonstration."""
    outcome = Simulation(seed, plan=PLAN, faults=FAULTS).run()
    return outcome, RunFacts(outcome.record)


def find_interesting(start: int = 0) -> tuple[RunOutcome[Record], RunFacts]:
    """Return the first run from seed ``start`` on that is interesting."""
    for seed in count(start):
        outcome, facts = play(seed)
        if is_interesting(facts):
            return outcome, facts
    raise AssertionError("seeds do not end")


class Picture:
    """Draws the tree of channels, each under the message that carried it."""

    def __init__(self, facts: RunFacts, *, ascii_only: bool) -> None:
        self._facts = facts
        self._marks = Marks(ascii_only=ascii_only)

    def tree(self) -> Tree:
        """Return the tree of all channels below the entrypoint."""
        entrypoint = self._facts.channels[0]
        root = Tree(self._label(entrypoint))
        nodes = {entrypoint.channel: root}
        for channel in self._facts.channels.values():
            if channel.parent is not None:
                parent = nodes[channel.parent.channel]
                nodes[channel.channel] = parent.add(self._label(channel))
        return root

    def legend(self) -> Text:
        """Return the meaning and the count of each mark that occurs."""
        fates = Counter(
            fate_of(message)
            for channel in self._facts.channels.values()
            for message in channel.messages
        )
        return self._marks.legend(fates)

    def _label(self, channel: ChannelFacts) -> Group:
        title = Text()
        if channel.carrier is not None:
            title.append(f"in {channel.carrier.number} ")
            title.append_text(self._draw([channel.carrier]))
            title.append(" ")
        title.append_text(
            self._marks.title(
                describe(channel.channel),
                channel.sender.name.lower(),
                channel.receiver.name.lower(),
                channel.mode.lower(),
                _ending(channel),
            )
        )
        if not channel.messages:
            return Group(title)
        messages = sorted(channel.messages, key=lambda message: message.sent.time)
        return Group(title, self._draw(messages))

    def _draw(self, messages: Sequence[MessageFacts]) -> Text:
        return self._marks.draw(fate_of(message) for message in messages)


def _ending(channel: ChannelFacts) -> str:
    if channel.lost:
        return End.LOST.value
    end = channel.sender_end or channel.receiver_end
    return "open" if end is None else end.how.value


def show(outcome: RunOutcome[Record], facts: RunFacts, console: Console) -> None:
    """Print the tree of a run, its legend and its violations."""
    picture = Picture(facts, ascii_only=console.options.ascii_only)
    lost = sum(channel.lost for channel in facts.channels.values())
    console.print("Every channel under the message that carried it, and each message's fate:")
    console.print()
    console.print(picture.tree())
    console.print()
    console.print(picture.legend(), end="")
    console.print(
        f"\n{outcome.counts['messages']} messages on {len(facts.channels)} channels, {lost} of "
        f"them lost in transit; {FAULTS.loss:.0%} of all packets lost, "
        f"{outcome.virtual_time:.1f} s of virtual time; seed {outcome.seed}, "
        f"transcript {transcript_hash(transcript(outcome.record))}.",
        highlight=False,
    )
    if outcome.violations:
        for violation in outcome.violations:
            console.print(Text(str(violation), style="bold red"))
    else:
        console.print("All promises were kept: both ends agree on the fate of every message.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, help="play this seed (default: an interesting one)")
    options = parser.parse_args(arguments)
    outcome, facts = find_interesting() if options.seed is None else play(options.seed)
    console = Console()
    if not console.is_terminal:
        console = Console(width=80)
    show(outcome, facts, console)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    try:
        code = main()
    except BrokenPipeError:
        # The reader closed the pipe: discard what is still buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)
