"""Who belongs to a group now: its declarations, read again when a file of them has changed.

A driver of a group runs for hours. A pipeline that joins the group meanwhile starts, one that leaves it ends, and one
that is declared wrongly waits until that is mended; none of it concerns the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from deltaworks.errors import DeltaworksError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.groups import StreamGroup, StreamGroupSpec, stream_groups

log = logging.getLogger(__name__)
_Signature = tuple[tuple[str, int, int], ...]
#: How long files must have stayed as they are before they are read: one that is half written is sound YAML at times,
#: and without its last line it names no group any more.
STABLE_SECONDS = 2.0


class GroupMembers:
    """The members of one group. Used by one thread."""

    def __init__(self, group: str, catalog: Catalog, *, load: Callable[[], Catalog]) -> None:
        """Begin with a catalog that has been read; `load` reads it again, leaving out what is declared wrongly."""
        self._name = group
        self._load = load
        self.catalog = catalog
        self._loaded_signature = _signature(catalog)
        self._last_change: tuple[_Signature, float] = (self._loaded_signature, 0.0)
        #: Whether something has changed that is not read yet: nobody is to be started as it was declared before.
        self.has_unread_change = False

    @property
    def group(self) -> StreamGroup:
        """The group as it was last read; without members where nobody names it any more."""
        groups = stream_groups(self.catalog)
        return groups.get(self._name) or StreamGroup(name=self._name, settings=StreamGroupSpec(), members={})

    def reload_if_changed(self) -> bool:
        """Read the declarations again where one has changed and all have settled; whether they were read."""
        signature, now = _signature(self.catalog), time.monotonic()
        if signature != self._last_change[0]:
            self._last_change = (signature, now)
        self.has_unread_change = signature != self._loaded_signature and now - self._last_change[1] < STABLE_SECONDS
        if signature == self._loaded_signature or self.has_unread_change:
            return False
        self._loaded_signature = signature
        try:
            self.catalog = self._load()
        except DeltaworksError as error:
            log.warning("group=%s goes on with the declarations as they were: %s", self._name, error)
            return False
        return True


def _signature(catalog: Catalog) -> _Signature:
    include = catalog.root / "include"
    files = (include.glob(pattern) for pattern in ("environments/*.yaml", "relays/*.yaml", "pipelines/*/pipeline.yaml"))
    return tuple(sorted(_file_states(path for matching in files for path in matching)))


def _file_states(files: Iterable[Path]) -> Iterable[tuple[str, int, int]]:
    for path in files:
        try:
            state = path.stat()
        except OSError:
            continue
        yield str(path), state.st_mtime_ns, state.st_size
