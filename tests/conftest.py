"""Which tests are the soak: real connections, most of them between real processes."""

from pathlib import Path

import pytest

SOAK = ("processes", "interop", "hostile", "quic", "channel", "cli", "trace", "test_examples.py")
QUICK = ("test_requirements.py",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them; `make soak` runs them, `make test` leaves them out."""
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here) if item.path.is_relative_to(here) else item.path
        if path.parts[0] in SOAK and path.name not in QUICK:
            item.add_marker(pytest.mark.soak)
