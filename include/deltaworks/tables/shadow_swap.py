"""Gives a table the content of another in one commit: its files are copied in, then the old ones go and they come.

Folders on object storage cannot be renamed, and a table is what its log says: so a swap is one commit of our own
(`tables.restore`), which readers see whole or not at all. The files are copied by the storage, not read, and stay in
the other table until the copies have been checked. Needs no JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError, TransientError
from deltaworks.tables.features import reasons_for_spark
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import Action, TableState, state_at
from deltaworks.tables.recreate import content
from deltaworks.tables.restore import RestoreCommit, RestoreOutcome, Target, commit_restore, reasons_against

#: Copies made at once: each is a request during which the storage works.
_COPIERS = 8


def reasons_against_swap(lake: Lake, objects: ObjectStore, key: str) -> list[str]:
    """Why the table at `key` cannot be given other files by a commit of ours, in words; empty where it can."""
    opened = lake.open(key)
    if opened is None:
        return ["no table yet"]
    return sorted({*reasons_for_spark(opened), *reasons_against(state_at(lake, objects, key))})


def swap_in(
    lake: Lake,
    objects: ObjectStore,
    key: str,
    source: TableState,
    *,
    commit: RestoreCommit,
    before_commit: Callable[[], None] = lambda: None,
) -> RestoreOutcome:
    """Make the table at `key` hold what `source` holds, with its columns and partitions. Idempotent by its step.

    Safe beside other writers: what they commit first is undone by the swap, and `before_commit` may refuse that; those
    who began before it fail, where `commit.raises` names the number they go by. The table keeps its id and properties.

    Args:
        before_commit: called before each attempt; what it raises ends the swap.

    Raises:
        TransientError: SWAP_COPY_DAMAGED, and then nothing was committed.
        ConcurrencyError, FencedError, ContractError: what `commit_restore` raises.
    """
    copy_files(lake, source, key, source.files.values())

    def target(current: TableState) -> Target:
        taken = {name: source.metadata[name] for name in ("schemaString", "partitionColumns")}
        return Target(source.files, {**current.metadata, **taken})

    return commit_restore(lake, objects, key, target, commit=commit, before_commit=before_commit)


def copy_files(lake: Lake, source: TableState, key: str, files: Iterable[Action]) -> None:
    """Copy files of one table into the folder of another, under the same paths. Idempotent.

    Raises:
        TransientError: SWAP_COPY_DAMAGED, a copy is not there as long as the log says.
    """
    added = list(files)
    origin, goal = arrow_path(lake.storage, source.key), arrow_path(lake.storage, key)
    filesystem = lake.filesystem

    def copy(path: str) -> None:
        if lake.storage.scheme == "file":
            filesystem.create_dir(f"{goal}/{path}".rpartition("/")[0], recursive=True)
        filesystem.copy_file(f"{origin}/{path}", f"{goal}/{path}")

    with ThreadPoolExecutor(_COPIERS) as pool:
        list(pool.map(copy, [_path(file) for file in added]))
    damaged = damaged_files(lake, key, added)
    if damaged:
        raise TransientError(
            "SWAP_COPY_DAMAGED",
            f"{len(damaged)} of {len(added)} files copied from {source.key} to {key} are not whole: {damaged[0]}.",
            hint="Run it again: they are copied anew.",
        )


def damaged_files(lake: Lake, key: str, files: Iterable[Action]) -> list[str]:
    """The paths of these files that are not there with the size their log says, in order."""
    sizes = {_path(file): int(file["size"]) for file in files}
    root = arrow_path(lake.storage, key)
    infos = lake.filesystem.get_file_info([f"{root}/{path}" for path in sizes])
    return sorted(path for path, info in zip(sizes, infos, strict=True) if info.size != sizes[path])


def settle_swap(lake: Lake, objects: ObjectStore, key: str, source: TableState, *, version: int | None = None) -> None:
    """Make sure that the table at `key` has all it was given, so that the source may go. Mends copies that are damaged.

    Args:
        version: the version the swap has just made, which is then compared with the source as another reader sees both.

    Raises:
        TransientError: SWAP_COPY_DAMAGED.
        ContractError: SWAP_UNVERIFIED.
    """
    current = state_at(lake, objects, key)
    ours = {name: file for name, file in source.files.items() if name in current.files}
    damaged = set(damaged_files(lake, key, ours.values()))
    if damaged:
        copy_files(lake, source, key, [file for file in ours.values() if _path(file) in damaged])
    if version is None:
        return
    opened, origin = lake.open(key), lake.open(source.key)
    if opened is None or origin is None:
        raise _unverified(key, source.key, "one of them cannot be opened")
    opened.load_as_version(version)
    origin.load_as_version(source.version)
    present, expected = content(opened), content(origin)
    if (present.rows, present.files, present.bytes) != (expected.rows, expected.files, expected.bytes):
        raise _unverified(key, source.key, f"{present} is not {expected}")


def _unverified(key: str, source: str, what: str) -> ContractError:
    return ContractError(
        "SWAP_UNVERIFIED",
        f"{key} was given the content of {source}, and does not show it: {what}.",
        hint=f"Nothing was removed: `RESTORE` {key} to the version before, and keep {source} to be looked at.",
    )


def _path(added: Action) -> str:
    return unquote(added["path"])
