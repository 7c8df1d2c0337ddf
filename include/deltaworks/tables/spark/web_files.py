"""Extracts third-party scripts of the console's pages from the WebJars resolved by Maven."""

from __future__ import annotations

import uuid
import zipfile
from pathlib import Path
from typing import Final

from deltaworks.errors import ConfigError

#: File name in the console's folder -> WebJar pattern and path in the jar.
WEB_FILES: Final = {"htmx.min.js": ("htmx.org-*.jar", "dist/htmx.min.js")}


def unpack_web_files(web: Path, folder: Path) -> list[Path]:
    """Writes the scripts of the jars in `web` to `folder`. Unchanged files are not written again. Safe for concurrent
    callers.

    Raises:
        ConfigError: JARS_INCOMPLETE, a jar is missing or does not contain the file.
    """
    written = []
    for name, (pattern, path_in_jar) in WEB_FILES.items():
        data = _read_from_jar(web, pattern, path_in_jar)
        target = folder / name
        if not target.is_file() or target.read_bytes() != data:
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{name}.{uuid.uuid4().hex}"
            temporary.write_bytes(data)
            temporary.replace(target)
        written.append(target)
    return written


def _read_from_jar(web: Path, pattern: str, entry_suffix: str) -> bytes:
    for jar in sorted(web.glob(pattern)):
        with zipfile.ZipFile(jar) as archive:
            for entry in archive.namelist():
                if entry.endswith(entry_suffix):
                    return archive.read(entry)
    raise ConfigError("JARS_INCOMPLETE", f"No jar {pattern} in {web} holds {entry_suffix}.")
