"""Where these tests run: processes are found in /proc."""

from __future__ import annotations

import sys

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]
