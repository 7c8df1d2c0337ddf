"""Settings of an environment as a file of `KEY=value` lines, quoted as a shell reads them.

The embedded stack writes one at its start, so that commands reach it without anything being exported by hand. Any
other environment can keep one too: DELTAWORKS_HOME names its folder.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from deltaworks.errors import ConfigError
from deltaworks.specs.project_folder import project_root


def settings_file() -> Path:
    """The file `env` in DELTAWORKS_HOME, or in `.deltaworks` of the checkout. It need not be there."""
    return Path(os.environ.get("DELTAWORKS_HOME", project_root() / ".deltaworks")) / "env"


def read_settings(path: Path) -> dict[str, str]:
    """The variables of the file.

    Raises:
        ConfigError: STACK_NOT_PREPARED when there is no such file.
    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError as error:
        raise ConfigError(
            "STACK_NOT_PREPARED",
            f"There is no embedded stack in {path.parent}.",
            hint="Start it: deltaworks up.",
        ) from error
    pairs = (line.split("=", 1) for line in lines if "=" in line)
    return {key: "".join(shlex.split(value)) for key, value in pairs}


def load_settings(path: Path) -> None:
    """Put the variables of the file into this process, as every process of its stack has them.

    PATH and the Python settings of the calling process stay as they are.

    Raises:
        ConfigError: STACK_NOT_PREPARED when there is no such file.
    """
    for key, value in read_settings(path).items():
        if key != "PATH" and not key.startswith("PYTHON"):
            os.environ[key] = value
