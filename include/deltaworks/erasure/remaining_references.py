"""Removes control objects that still refer to purged rows: prepared batches, replays, staged rows and gold shadows.

A prepared batch contains the paths of its files, and column bounds with tokens; a recovery from it would restore a
file. Complete batches are deleted when the erasure window is processed, not after their normal retention. Incomplete
ones stay: `suppression` ensures that they contain no erased person.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain

from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import maintenance_lock
from deltaworks.erasure.namespace import Namespace
from deltaworks.erasure.scan_formats import scan_object
from deltaworks.erasure.token_search import TokenSearch
from deltaworks.errors import ConcurrencyError
from deltaworks.tables.lake import remove_folder
from deltaworks.tables.steps import read_last_completed, read_last_replay

_PREPARED = re.compile(r"/prepared/g(\d+)/(\d+)\.json$")
_REPLAY = re.compile(r"/replays/(\d+)\.json$")
_SHADOW = re.compile(r".*/gold_shadows/[^/]+/\d+(?=/)")


def remove_references(
    namespace: Namespace, pipeline: str, search: TokenSearch, *, purged: Mapping[str, frozenset[str]]
) -> None:
    """Removes control objects of a pipeline that refer to purged rows. Idempotent; safe while the stream runs.

    Args:
        purged: files that erasure windows removed, by `<pipeline>.<table>`.
    """
    home = namespace.home(pipeline)
    names = frozenset(path.rpartition("/")[2].encode() for paths in purged.values() for path in paths)
    for key in chain(_complete_batches(namespace, home), _complete_replays(namespace, home)):
        stored = home.objects.get(key)
        if stored is not None and (search.tokens_in_bytes(stored.data) or any(name in stored.data for name in names)):
            home.objects.delete(key)
    for folder in ("staging", "reprocess", "crashes"):
        for key in home.objects.list(f"{home.control(folder)}/"):
            if scan_object(namespace.lake, key, search).tokens:
                home.objects.delete(key)
    remove_gold_shadows(namespace, pipeline, search)


def remove_gold_shadows(namespace: Namespace, pipeline: str, search: TokenSearch) -> None:
    """Deletes gold shadow tables with rows of these people; the next refresh builds a new one. Idempotent.

    A shadow in use by a refresh is skipped, because it is updated from the purged tables before it is swapped in, and
    deleted afterwards. A shadow is deleted completely, its log first: with only some files missing the next refresh
    would continue with it, but could not read it.
    """
    home = namespace.home(pipeline)
    shadows: dict[str, list[str]] = {}
    for key in home.objects.list(f"{home.control('gold_shadows')}/"):
        if match := _SHADOW.search(key):
            shadows.setdefault(match[0], []).append(key)
    for shadow, keys in shadows.items():
        if not any(scan_object(namespace.lake, key, search).tokens for key in keys):
            continue
        folder = shadow.rpartition("/")[0]
        with (
            suppress(ConcurrencyError),
            maintenance_lock(home.objects, pipeline, work="an erasure", folder=folder) as lock,
        ):
            remove_folder(namespace.lake.storage, f"{shadow}/_delta_log")
            lock.check()
            remove_folder(namespace.lake.storage, shadow)


def _complete_batches(namespace: Namespace, home: PipelineHome) -> Iterator[str]:
    """Yields complete batches of the current generation, and all batches of earlier generations."""
    generation = home.generations.current()
    last = read_last_completed(namespace.lake, home.pipeline, generation)
    for key in home.objects.list(f"{home.control('prepared')}/"):
        match = _PREPARED.search(key)
        if match is not None and (int(match[1]), int(match[2])) < (generation, -1 if last is None else last):
            yield key


def _complete_replays(namespace: Namespace, home: PipelineHome) -> Iterator[str]:
    last = read_last_replay(namespace.lake, home.pipeline)
    for key in home.objects.list(f"{home.control('replays')}/"):
        match = _REPLAY.search(key)
        if match is not None and int(match[1]) <= last:
            yield key
