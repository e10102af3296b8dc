"""Draw docs/spec/7-states.md from the transition tables of channels and of ScalableIPC."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from aqueduct.ipc.core import incoming, outgoing
from aqueduct.protocol import receiver_states, sender_states

State = TypeVar("State", bound=Enum)
Cause = TypeVar("Cause", bound=Enum)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "spec" / "7-states.md"


def diagram(start: State, table: Mapping[tuple[State, Cause], State]) -> str:
    """Return a Mermaid state diagram; inputs that keep a state are in a note beside it."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start.name}"]
    edges: dict[tuple[str, str], list[str]] = {}
    stays: dict[str, list[str]] = {}
    for (state, cause), target in table.items():
        if state is target:
            stays.setdefault(state.name, []).append(str(cause.value))
        else:
            edges.setdefault((state.name, target.name), []).append(str(cause.value))
    lines += [f"    {a} --> {b}: {', '.join(causes)}" for (a, b), causes in edges.items()]
    last = {target.name: None for target in table.values() if target not in {s for s, _ in table}}
    lines += [f"    {state} --> [*]" for state in last]
    lines += [f"    note right of {s}: stays on {', '.join(c)}" for s, c in stays.items()]
    return "\n".join([*lines, "```"])


def page() -> str:
    """Return the whole page."""
    return "\n".join(
        [
            "# 7. States",
            "",
            "Drawn by `python tools/states.py` from the tables in `protocol/sender_states.py`,",
            "`protocol/receiver_states.py`, `ipc/core/outgoing.py` and `ipc/core/incoming.py`;",
            "a test fails when this page and the tables differ. Words in capitals are frames of",
            "the peer, the others are commands and conclusions of this side. What a state has no",
            "arrow and no note for is an error.",
            "",
            "## The sender",
            "",
            diagram(sender_states.SenderState.OPEN, sender_states.TRANSITIONS),
            "",
            "FORGOTTEN: the sender may not send any more, and waits for acks that FORGET_CHANNEL",
            "has overtaken (AQ-FORGET-5). CLOSED: the wire knows the channel no more; the sender",
            "waits for its lineage ([page 5](5-lineage.md)) or for its handle to reach the",
            "application.",
            "",
            "## The receiver",
            "",
            diagram(receiver_states.ReceiverState.OPEN, receiver_states.TRANSITIONS),
            "",
            "FINISHING: the peer finished, not everything has arrived. CLOSING: datagrams that",
            "arrived are not announced yet, for at most a second (AQ-CLOSE-3). DRAINING: the",
            "wire knows the channel no more; the application has still to take its queue, or its",
            "handle.",
            "",
            "## ScalableIPC: a message on its way out",
            "",
            diagram(outgoing.OutgoingState.WAITING, outgoing.TRANSITIONS),
            "",
            "WAITING: for room in the window (IPC-FLOW-1). HEADER and DATA: that PDU's ack is",
            "pending. A correction is an answer with another destination id or a smaller PDU",
            "(IPC-SEND-9, IPC-SEND-10), an error code any other (IPC-SEND-8).",
            "",
            "## ScalableIPC: a message on its way in",
            "",
            diagram(incoming.IncomingState.BEGUN, incoming.TRANSITIONS),
            "",
            "BEGUN lasts only until the HEADER's data is added (IPC-RECV-18). WHOLE: the last ack",
            "waits for the application (IPC-RECV-8). PROCESSED and ABORTED: only the id and the",
            "answer are remembered (IPC-RECV-16).",
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(Path.cwd())}" if PAGE.is_relative_to(Path.cwd()) else PAGE)
