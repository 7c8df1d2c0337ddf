"""Members of a stream group, reloaded when a declaration file changes.

A group's driver runs for hours. A pipeline that joins the group in that time is started, and one that leaves is ended.
A pipeline with an invalid declaration waits until it is corrected. Other members are not affected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from deltaworks.errors import DeltaworksError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import StreamGroupSpec
from deltaworks.specs.groups import StreamGroup, stream_groups

log = logging.getLogger(__name__)
_Signature = tuple[tuple[str, int, int], ...]
#: Files must be unchanged for this long before they are read: a half-written file may be valid YAML, and could lack the
#: line that names its group.
STABLE_SECONDS = 2.0


class GroupMembers:
    """The pipelines that belong to one group, as declared now. Used by one thread."""

    def __init__(self, group: str, catalog: Catalog, *, load: Callable[[], Catalog]) -> None:
        """Starts with the given catalog; `load` returns a new one, without invalid declarations."""
        self._name = group
        self._load = load
        self.catalog = catalog
        self._loaded_signature = _signature(catalog)
        self._last_change: tuple[_Signature, float] = (self._loaded_signature, 0.0)
        #: True while a change is not loaded yet; no member starts with an outdated declaration.
        self.has_unread_change = False

    @property
    def group(self) -> StreamGroup:
        """The group as last loaded; it has no members if no pipeline names it."""
        groups = stream_groups(self.catalog)
        return groups.get(self._name) or StreamGroup(name=self._name, settings=StreamGroupSpec(), members={})

    def reload_if_changed(self) -> bool:
        """Reloads the declarations if files changed and have been stable for a while. Returns whether they were
        reloaded.
        """
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
            log.warning("group=%s continues with the previous declarations: %s", self._name, error)
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
