"""Python environments for libraries that a benchmark compares with and the project does not depend on."""

from __future__ import annotations

import json
import shutil
import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

_INSTALL_SECONDS = 600


def python_with(pins: Sequence[str], *, name: str, benchmark: str, progress: Callable[[str], None]) -> Path | None:
    """Returns the Python of an environment with these packages. Creates the environment from PyPI on first use.

    Returns:
        None if the packages cannot be installed; `progress` gets the reason.
    """
    from benchmarks.games_files import bench_folder

    folder = bench_folder() / f"environment-of-{name}"
    record, python = folder / "installed.json", folder / "bin" / "python"
    if record.is_file() and json.loads(record.read_text()) == list(pins):
        return python
    progress(f"{benchmark}: installing {', '.join(pins)} into {folder} (first use only)")
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
        progress(f"{benchmark}: skipping {name}, pip could not install it from PyPI: {said!r}")
        return None
    # Written last: an environment without this file was interrupted and is created again.
    record.write_text(json.dumps(list(pins)))
    return python
