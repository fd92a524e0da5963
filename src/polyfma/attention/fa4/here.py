"""Stand-ins for another package's globals that other threads do not see."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def here(ours: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """``ours`` in this thread and ``plain`` in others: what stands in for a global while one kernel is traced."""
    owner = threading.get_ident()
    return lambda *args, **kwargs: (ours if threading.get_ident() == owner else plain)(*args, **kwargs)
