"""The temporary folder of an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow import fs

from deltaworks.errors import ContractError
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import arrow_filesystem, arrow_path, remove_folder


@contextmanager
def scratch_folder(storage: StorageSpec, prefix: str, *, keep: bool = False) -> Iterator[None]:
    """Reserves the folder `prefix` of a storage during the block; removes it and its content at the end unless `keep`.

    Raises:
        ContractError: EXPERIMENT_FOLDER_TAKEN, the folder exists; it is not changed.
    """
    filesystem, folder = arrow_filesystem(storage), arrow_path(storage, prefix)
    if _exists(filesystem, folder):
        raise ContractError(
            "EXPERIMENT_FOLDER_TAKEN",
            f"{storage.uri(prefix)} exists: an experiment removes its folder, so that it takes only a new one.",
        )
    try:
        yield
    finally:
        if not keep and _exists(filesystem, folder):
            remove_folder(storage, prefix)


def _exists(filesystem: fs.FileSystem, folder: str) -> bool:
    return bool(filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)))
