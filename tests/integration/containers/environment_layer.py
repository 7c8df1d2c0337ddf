"""Provides the image's Python environment without installing it: this checkout's packages at the image's path.

The build's installer is replaced by one that checks that its lock files are in the image and have hashes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.integration.containers.base_images import AIRFLOW_USER

VENV = "/opt/deltaworks/venv"
_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
_INSTALLER = """\
import sys
from pathlib import Path

words = sys.argv[1:]
locks = [Path(word) for word in words if word.endswith((".lock", ".txt"))]
if not locks or "--require-hashes" not in words:
    sys.exit(f"{words} installs what no lock with hashes says")
for lock in locks:
    if "--hash=sha256:" not in lock.read_text():
        sys.exit(f"{lock} holds no hash")
"""


@dataclass(frozen=True, slots=True)
class EnvironmentLayers:
    """`installed`, topmost first, is the environment; `installer` is added on top during the build."""

    installer: Path
    installed: tuple[Path, ...]


def environment_layers(folder: Path) -> EnvironmentLayers:
    """Creates the layers below `folder`."""
    environment = Path(sys.prefix).resolve()
    moved, installer = folder / "moved", folder / "installer"
    _give_folders(environment, moved)
    _move_programs(environment, moved)
    program = installer / _PACKAGES / "pip" / "__main__.py"
    program.parent.mkdir(parents=True)
    program.write_text(_INSTALLER, encoding="utf-8")
    return EnvironmentLayers(installer, (moved, environment))


def _give_folders(environment: Path, moved: Path) -> None:
    """Makes the image's installing user the owner of every folder: Spark's worker writes below the environment."""
    for folder, _, _ in os.walk(environment):
        place = moved / Path(folder).relative_to(environment)
        place.mkdir(parents=True, exist_ok=True)
        os.chown(place, *AIRFLOW_USER)


def _move_programs(environment: Path, moved: Path) -> None:
    """Rewrites the first line of the environment's scripts to the image's Python."""
    for script in sorted((environment / "bin").iterdir()):
        first = b"" if script.is_symlink() else script.read_bytes()[:200].partition(b"\n")[0]
        if first.startswith(b"#!/") and b"/bin/python" in first:
            text = script.read_bytes().partition(b"\n")[2]
            copy = moved / "bin" / script.name
            copy.write_bytes(f"#!{VENV}/bin/python\n".encode() + text)
            copy.chmod(0o755)
