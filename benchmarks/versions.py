"""The environment of a measurement: the number of cores, and library versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "orjson")


def cores() -> int:
    """Returns the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


def versions() -> dict[str, str]:
    """Returns library versions by name, including Python and Deltaworks."""
    from deltaworks import __version__

    installed = {name: version(name) for name in _PACKAGES}
    return {"deltaworks": __version__, "python": platform.python_version(), **installed}
