"""A program of the stack: the dead man's switch, and a watch that adds what newly declared pipelines need.

A pipeline that reads Kafka needs the broker and its topics, one that reads Kinesis its stream, and the source of a
collector the collector. Without the watch they would wait for another `up`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Hashable

from deltaworks.alerts import deadman
from deltaworks.errors import DeltaworksError
from deltaworks.specs.project_folder import declaration_state
from sandbox.stack.declared_topics import declared_collector, declared_streams, declared_topics
from sandbox.stack.home import StackHome
from sandbox.stack.stack import add_programs

log = logging.getLogger(__name__)
_POLL_SECONDS = 5.0
_DEADMAN_SECONDS = "30"
Needs = tuple[tuple[str, ...], tuple[str, ...], str | None]


def declared_needs(home: StackHome) -> Needs:
    """Returns topics, streams and collector of the declared pipelines.

    Raises:
        ConfigError: the environment's declaration is invalid.
    """
    return declared_topics(home), declared_streams(home), declared_collector(home)


class NeedsWatch:
    """Calls `supply` when the needs of the declared pipelines have changed, until it succeeds.

    Args:
        state: returns a value that is equal while no declaration has changed, as reading them takes processor time.
    """

    def __init__(self, state: Callable[[], Hashable], needs: Callable[[], Needs], supply: Callable[[], object]) -> None:
        self._state, self._needs, self._supply = state, needs, supply
        self._supplied: Needs | None = None
        self._checked: Hashable = None

    def check(self) -> bool:
        """Checks once; returns whether something was supplied. Errors are logged, and the next check tries again."""
        state = self._state()
        if state == self._checked:
            return False
        try:
            needs = self._needs()
            # The start of the stack has supplied the first ones.
            if self._supplied is None or needs == self._supplied:
                self._supplied, self._checked = needs, state
                return False
            self._supply()
        except DeltaworksError as error:
            log.warning("New pipelines have to wait: %s", error)
            return False
        self._supplied, self._checked = needs, state
        return True


def _watch(home: StackHome) -> None:
    watch = NeedsWatch(
        lambda: declaration_state(home.project),
        lambda: declared_needs(home),
        lambda: add_programs(home=home, progress=log.info),
    )
    while True:
        try:
            watch.check()
        except Exception:  # the watch must not end before the stack
            log.exception("New pipelines have to wait")
        threading.Event().wait(_POLL_SECONDS)


def main() -> int:
    """Runs both until the process ends."""
    threading.Thread(target=_watch, args=(StackHome.default(),), name="needs", daemon=True).start()
    return deadman.main(["--every", _DEADMAN_SECONDS])


if __name__ == "__main__":
    sys.exit(main())
