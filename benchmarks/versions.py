"""What a figure was measured with: cores, and the versions of everything that does the work."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "orjson")


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def versions() -> dict[str, str]:
    """Versions by name; Python's and Deltaworks' among them."""
    from deltaworks import __version__

    installed = {name: version(name) for name in _PACKAGES}
    return {"deltaworks": __version__, "python": platform.python_version(), **installed}
