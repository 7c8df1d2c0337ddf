"""Runs processes and captures their output as text."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_process(
    command: Sequence[str | Path], *, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; options as of `subprocess.run`."""
    return subprocess.run(list(command), capture_output=True, text=True, check=check, **options)
