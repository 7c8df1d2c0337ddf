"""Runs a relay: `python -m deltaworks.sources.objects.relay --relay landing`.

Ends after the relay's `max_run_seconds`, on SIGTERM, on a stop request, and when its launcher dies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from deltaworks.control import paths
from deltaworks.control.daemon_main import DaemonKind, run_daemon
from deltaworks.sources.objects.relay.queue import NotificationQueue
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.specs.base import resolve_text
from deltaworks.specs.catalog import Catalog


def open_relay(catalog: Catalog, name: str, on_tick: Callable[[], None]) -> Relay:
    """Creates the relay of that name and connects it to its queue.

    Raises:
        ConfigError: RELAY_UNKNOWN, an invalid declaration, REFERENCE_UNRESOLVED.
    """
    spec, environment = catalog.relay(name), catalog.environment
    queue = None
    if spec.queue_url is not None:
        queue = NotificationQueue(
            environment.messaging, resolve_text(spec.queue_url), visibility_seconds=spec.visibility_seconds
        )
    return Relay(spec, lake=environment.lake, queue=queue, landing=environment.landing, on_tick=on_tick)


RELAY = DaemonKind(
    noun="relay",
    module="deltaworks.sources.objects.relay",
    help="a name under include/relays",
    control_folder=paths.relay_control,
    build=open_relay,
    failure_condition="RELAY_FAILED",
)


def main(arguments: list[str] | None = None) -> int:
    """Runs one relay until it ends; returns the exit code."""
    return run_daemon(RELAY, arguments)


if __name__ == "__main__":
    sys.exit(main())
