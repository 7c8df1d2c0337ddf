"""Removes a folder of the lake with all that lies in it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pyarrow import fs

from deltaworks.control.objects import open_objects
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import arrow_filesystem, arrow_path

_DELETERS = 16


def remove_folder(storage: StorageSpec, prefix: str) -> None:
    """Delete everything below `prefix`, in no order. Nothing happens where there is nothing."""
    if storage.scheme == "file":
        filesystem, folder = arrow_filesystem(storage), arrow_path(storage, prefix)
        if filesystem.get_file_info(folder).type is fs.FileType.Directory:
            filesystem.delete_dir(folder)
        return
    # One request an object: servers beside AWS do not take every client's request for many.
    objects = open_objects(storage)
    with ThreadPoolExecutor(_DELETERS) as pool:
        list(pool.map(objects.delete, objects.list(f"{prefix}/")))
