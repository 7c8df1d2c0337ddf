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
SETTLED_SECONDS = 2.0


class Roster:
    """The members of one group. Used by one thread."""

    def __init__(self, group: str, catalog: Catalog, *, load: Callable[[], Catalog]) -> None:
        """Begin with a catalog that has been read; `load` reads it again, leaving out what is declared wrongly."""
        self._name = group
        self._load = load
        self.catalog = catalog
        self._seen = _signature(catalog)
        self._changed: tuple[_Signature, float] = (self._seen, 0.0)
        #: Whether something has changed that is not read yet: nobody is to be started as it was declared before.
        self.is_settling = False

    @property
    def group(self) -> StreamGroup:
        """The group as it was last read; without members where nobody names it any more."""
        groups = stream_groups(self.catalog)
        return groups.get(self._name) or StreamGroup(name=self._name, settings=StreamGroupSpec(), members={})

    def look(self) -> bool:
        """Read the declarations again where one has changed and all have settled; whether they were read."""
        seen, now = _signature(self.catalog), time.monotonic()
        if seen != self._changed[0]:
            self._changed = (seen, now)
        self.is_settling = seen != self._seen and now - self._changed[1] < SETTLED_SECONDS
        if seen == self._seen or self.is_settling:
            return False
        self._seen = seen
        try:
            self.catalog = self._load()
        except DeltaworksError as error:
            log.warning("group=%s goes on with the declarations as they were: %s", self._name, error)
            return False
        return True


def _signature(catalog: Catalog) -> _Signature:
    include = catalog.root / "include"
    files = (include.glob(pattern) for pattern in ("environments/*.yaml", "relays/*.yaml", "pipelines/*/pipeline.yaml"))
    return tuple(sorted(_states(path for matching in files for path in matching)))


def _states(files: Iterable[Path]) -> Iterable[tuple[str, int, int]]:
    for path in files:
        try:
            state = path.stat()
        except OSError:
            continue
        yield str(path), state.st_mtime_ns, state.st_size
