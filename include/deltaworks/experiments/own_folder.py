"""The folder an experiment works in: new when it begins, gone when it ends, whatever happened in between."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pyarrow import fs

from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import arrow_filesystem, arrow_path

_DELETERS = 16


@contextmanager
def own_folder(storage: StorageSpec, prefix: str, *, keep: bool = False) -> Iterator[None]:
    """The folder `prefix` of a storage for the time of a block, removed with all in it unless `keep`.

    Raises:
        ContractError: EXPERIMENT_FOLDER_TAKEN; then nothing of it is touched.
    """
    filesystem, folder = arrow_filesystem(storage), arrow_path(storage, prefix)
    if _exists(filesystem, folder):
        raise ContractError(
            "EXPERIMENT_FOLDER_TAKEN",
            f"{storage.uri(prefix)} exists: an experiment removes its folder, so that it takes only a new one.",
            hint="Name another folder, or remove what an earlier experiment kept there.",
        )
    try:
        yield
    finally:
        if not keep and _exists(filesystem, folder):
            _remove(storage, prefix)


def _exists(filesystem: fs.FileSystem, folder: str) -> bool:
    return bool(filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)))


def _remove(storage: StorageSpec, prefix: str) -> None:
    if storage.scheme == "file":
        arrow_filesystem(storage).delete_dir(arrow_path(storage, prefix))
        return
    # One request an object: servers beside AWS do not take every client's request for many.
    objects = open_objects(storage)
    with ThreadPoolExecutor(_DELETERS) as pool:
        list(pool.map(objects.delete, objects.list(f"{prefix}/")))
