"""The crash tests need /proc to find processes."""

from __future__ import annotations

import sys

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]
