"""The tree of channels: what becomes accessible, what is lost, and how far that reaches."""

from itertools import pairwise

from aqueduct.protocol.lineage import (
    LINEAGE_SHOWN,
    Node,
    message_key,
    spread_accessible,
    spread_lost,
)


def chain(length: int, *, acked: bool) -> list[Node]:
    """Return pending channels, each attached to message 0 of the previous one."""
    nodes = [Node(index, False) for index in range(length)]
    for above, below in pairwise(nodes):
        above.attach(message_key(True, 0), [below])
        if acked:
            assert above.acked(above.release(message_key(True, 0))) == []
    return nodes


def test_a_channel_is_accessible_when_its_carrier_is_acked_on_an_accessible_one() -> None:
    """AQ-LIN-2."""
    root, child = Node(0, True), Node(8, False)
    root.attach(message_key(True, 3), [child])
    assert root.acked(root.release(message_key(True, 3))) == [child]
    assert child.accessible


def test_a_channel_whose_carrier_is_acked_on_a_pending_one_stays_pending() -> None:
    """AQ-LIN-2."""
    parent, child = Node(8, False), Node(16, False)
    parent.attach(message_key(True, 0), [child])
    assert parent.acked(parent.release(message_key(True, 0))) == []
    assert not child.accessible
    assert spread_accessible([parent]) == [parent, child]
    assert child.accessible


def test_a_channel_with_an_unacked_carrier_stays_pending_under_an_accessible_parent() -> None:
    """AQ-LIN-2."""
    parent, child = Node(8, False), Node(16, False)
    parent.attach(message_key(True, 0), [child])
    assert spread_accessible([parent]) == [parent]
    assert not child.accessible


def test_all_descendants_of_a_lost_channel_are_lost() -> None:
    """AQ-LIN-3."""
    lost, acked, waiting = Node(8, False), Node(16, False), Node(24, False)
    lost.attach(message_key(True, 0), [acked])
    lost.attach(message_key(False, 0), [waiting])
    lost.acked(lost.release(message_key(True, 0)))
    assert {node for node, _ in spread_lost([lost], (0,))} == {lost, acked, waiting}
    assert spread_lost([lost], (0,)) == [(lost, (0,))], "it has no descendants any more"


def test_a_lost_channel_names_its_ancestors_nearest_first() -> None:
    """AQ-LIN-3."""
    nodes = chain(4, acked=False)
    assert [above for _, above in spread_lost([nodes[0]], (99,))] == [
        (99,),
        (0, 99),
        (1, 0, 99),
        (2, 1, 0, 99),
    ]


def test_the_number_of_named_ancestors_is_bounded() -> None:
    """AQ-LIN-5: naming all would take time and memory quadratic in the depth."""
    nodes = chain(10 * LINEAGE_SHOWN, acked=False)
    longest = max(len(above) for _, above in spread_lost([nodes[0]], (99,)))
    assert longest == LINEAGE_SHOWN >= 16


def test_accessibility_and_loss_spread_through_a_deep_tree() -> None:
    """AQ-LIN-5: ten times deeper than Python's stack."""
    depth = 10_000
    assert len(spread_accessible([chain(depth, acked=True)[0]])) == depth
    assert len(spread_lost([chain(depth, acked=True)[0]], (99,))) == depth
    assert len(spread_lost([chain(depth, acked=False)[0]], (99,))) == depth


def test_the_number_spaces_of_a_channel_are_separate() -> None:
    """AQ-SEND-2."""
    node, reliable, unreliable = Node(0, True), Node(8, False), Node(16, False)
    node.attach(message_key(True, 5), [reliable])
    node.attach(message_key(False, 5), [unreliable])
    assert node.release_range(True, 0, 10) == [reliable]
    assert node.release_range(True, 0, 10) == []
    assert node.release_range(False, 5, 6) == [unreliable]


def test_a_range_of_any_width_releases_its_messages() -> None:
    node = Node(0, True)
    children = [Node(8 * at, False) for at in range(1, 6)]
    for at, child in enumerate(children):
        node.attach(message_key(True, 10 * at), [child])
    assert node.release_range(True, 9, 12) == [children[1]]
    assert node.release_range(True, 0, 10) == [children[0]]
    assert node.release_range(True, 11, 2**60) == children[2:]
    assert node.waiting is None


def test_a_message_without_channels_releases_nothing() -> None:
    node = Node(0, True)
    assert node.release(message_key(True, 0)) == []
    assert node.release_range(True, 0, 9) == []
    assert node.release_all() == []
    assert node.acked([]) == []
