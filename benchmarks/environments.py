"""Environments of Python for what a benchmark is held against and the project does not depend on."""

from __future__ import annotations

import json
import shutil
import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

_INSTALL_SECONDS = 600


def python_with(pins: Sequence[str], *, name: str, benchmark: str, progress: Callable[[str], None]) -> Path | None:
    """The Python of an environment that has these packages, made from PyPI where it is not there yet.

    Returns:
        None where they cannot be installed; progress says why.
    """
    from benchmarks.games_files import bench_folder

    folder = bench_folder() / f"environment-of-{name}"
    record, python = folder / "installed.json", folder / "bin" / "python"
    if record.is_file() and json.loads(record.read_text()) == list(pins):
        return python
    progress(f"{benchmark}: installing {', '.join(pins)} into {folder} once")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    try:
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins],
            check=True,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (error.stderr or b"" if isinstance(error.stderr, bytes) else error.stderr or str(error))[-500:]
        progress(f"{benchmark}: {name} is left out, pip could not install it from PyPI: {said!r}")
        return None
    # Written last: an environment without it was interrupted and is made again.
    record.write_text(json.dumps(list(pins)))
    return python
