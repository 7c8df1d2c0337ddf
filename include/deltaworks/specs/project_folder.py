"""Location of the project, and its settings file of environment variables. Imports no specs, so that listing names
stays fast.

The settings file has `KEY=value` lines with shell quoting. The embedded stack writes it at startup, so that commands
need no exported variables. Other environments can use one too: DELTAWORKS_HOME is its folder.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from deltaworks.errors import ConfigError

PROJECT_ROOT = Path(__file__).resolve().parents[3]
#: The path, modification time and size of each declaration file.
DeclarationState = frozenset[tuple[str, int, int]]
_DECLARATION_FOLDERS = ("pipelines", "relays", "environments", "collectors")


def project_root() -> Path:
    """Returns the project folder: DELTAWORKS_PROJECT, or the checkout."""
    return Path(os.environ.get("DELTAWORKS_PROJECT", PROJECT_ROOT))


def declaration_state(root: Path) -> DeclarationState:
    """Returns all declaration files of a project, each with its modification time and size. The result is equal as long
    as none has changed. To follow the files, call it before they are read: it then differs if they change meanwhile.
    """
    files = set()
    for folder in _DECLARATION_FOLDERS:
        for path in (root / "include" / folder).rglob("*"):
            try:
                status = path.stat()
            except OSError:  # the file was removed after it was listed
                continue
            files.add((str(path), status.st_mtime_ns, status.st_size))
    return frozenset(files)


def settings_file() -> Path:
    """Returns the path of the file `env` in DELTAWORKS_HOME or in `.deltaworks` of the checkout. The file need not
    exist.
    """
    return Path(os.environ.get("DELTAWORKS_HOME", project_root() / ".deltaworks")) / "env"


def read_settings(path: Path) -> dict[str, str]:
    """Reads the variables of the file.

    Raises:
        ConfigError: STACK_NOT_PREPARED if the file does not exist.
    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError as error:
        raise ConfigError("STACK_NOT_PREPARED", f"There is no embedded stack in {path.parent}.") from error
    pairs = (line.split("=", 1) for line in lines if "=" in line)
    return {key: "".join(shlex.split(value)) for key, value in pairs}


def load_settings(path: Path) -> None:
    """Sets the file's variables in this process. PATH and Python settings of the process stay unchanged.

    Raises:
        ConfigError: STACK_NOT_PREPARED if the file does not exist.
    """
    for key, value in read_settings(path).items():
        if key != "PATH" and not key.startswith("PYTHON"):
            os.environ[key] = value
