"""Whether the files that a log names are there: data files and deletion vectors, by one listing or one by one."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from pyarrow import fs

from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action
from deltaworks.tables.log_state import FileId

#: Up to so many files are asked for one by one; above it a listing is cheaper, of all that lies there.
_STAT_UP_TO = 1_000
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ENCODED_UUID = 20


def absent_files(lake: Lake, key: str, files: Mapping[FileId, Action] | Iterable[Action]) -> list[str]:
    """The paths below the table that these add actions need and that are not there, in order.

    A file of an absolute path belongs to another table and is not looked for.
    """
    actions = list(files.values()) if isinstance(files, Mapping) else list(files)
    wanted = sorted({path for action in actions for path in needed_by(action)})
    if not wanted:
        return []
    root = arrow_path(lake.storage, key)
    if len(wanted) <= _STAT_UP_TO:
        found = lake.filesystem.get_file_info([f"{root}/{path}" for path in wanted])
        return [path for path, info in zip(wanted, found, strict=True) if info.type is not fs.FileType.File]
    listed = lake.filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    present = {info.path.removeprefix(f"{root}/") for info in listed if info.type is fs.FileType.File}
    return [path for path in wanted if path not in present]


def needed_by(action: Action) -> list[str]:
    """The objects below the table that reading the file of an add action takes."""
    path = unquote(action["path"])
    found = [] if "://" in path or path.startswith("/") else [path]
    vector = action.get("deletionVector")
    if vector and vector["storageType"] == "u":
        found.append(_vector_path(vector["pathOrInlineDv"]))
    return found


def _vector_path(encoded: str) -> str:
    """Where a deletion vector lies: its name is a UUID in Z85 behind the folder's name, if that has one."""
    folder, text = encoded[:-_ENCODED_UUID], encoded[-_ENCODED_UUID:]
    data = b""
    for start in range(0, _ENCODED_UUID, 5):
        number = 0
        for letter in text[start : start + 5]:
            number = number * 85 + _Z85.index(letter)
        data += number.to_bytes(4, "big")
    name = f"deletion_vector_{uuid.UUID(bytes=data)}.bin"
    return f"{folder}/{name}" if folder else name
