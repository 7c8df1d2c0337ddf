"""The entry point of the collector as an AWS Lambda: `deltaworks.collector_host.aws_lambda.handle`.

COLLECTOR names the file in include/collectors. Keys come from the environment's key service and are opened before the
first request: an instance without them accepts no event.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from collector.lambda_gateway import Gateway
from collector.sinks.factory import open_destinations
from deltaworks.collector_host.redaction import RELOAD_SECONDS, SuppressionReload, open_redaction
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.weak_secrets import check_write_keys

log = logging.getLogger(__name__)


def handle(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Handles an API Gateway request of either payload version."""
    return _gateway().handle(event)


def redacting_gateway(
    spec: CollectorSpec,
    catalog: Catalog,
    lake: ObjectStore,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    **gateway_options: Any,
) -> Gateway:
    """Returns the gateway of a collector that redacts sources with personal data.

    Args:
        gateway_options: further arguments of `Gateway`.

    Raises:
        DeltaworksError: see `open_destinations` and `open_redaction`.
    """
    redaction = open_redaction(spec, catalog, lake)
    reload = _PeriodicReload(SuppressionReload(redaction, lake), monotonic)
    destinations = gateway_options.pop("destinations", None) or open_destinations(spec, catalog)
    return Gateway(
        spec,
        destinations,
        redactions=redaction.by_source,
        vault=redaction.vault,
        before_request=reload,
        **gateway_options,
    )


class _PeriodicReload:
    """Reloads the lists of erased subjects at most once a minute.

    It runs at the start of a request, since a Lambda runs nothing between requests.
    """

    def __init__(self, reload: SuppressionReload, monotonic: Callable[[], float]) -> None:
        self._reload = reload
        self._monotonic = monotonic
        self._reloaded_at = monotonic()

    def __call__(self) -> None:
        if self._monotonic() - self._reloaded_at < RELOAD_SECONDS:
            return
        self._reloaded_at = self._monotonic()
        try:
            self._reload.reload()
        except Exception:  # keep the loaded list; the stream's parser drops events of newly erased people
            log.exception("the list of erased subjects could not be read")


@cache
def _gateway() -> Gateway:
    root = Path(os.environ.get("LAMBDA_TASK_ROOT", Path.cwd()))
    catalog = load_catalog(root=root, skip_invalid=True)
    spec = catalog.collector(os.environ.get("COLLECTOR") or next(iter(catalog.collectors), "edge"))
    check_write_keys(spec, environment=catalog.environment.environment)
    return redacting_gateway(spec, catalog, open_objects(catalog.environment.lake))
