"""Redaction of a collector: the keys and suppression lists of its sources' namespaces, opened before it accepts
events."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from collector.redaction import SourceRedactor
from deltaworks.control.background import BackgroundThread
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.privacy.stored_keys import (
    day_public_key,
    namespace_token_key,
    open_key_service,
    privacy_settings,
)
from deltaworks.privacy.tokens.envelope_encryption import Sealer
from deltaworks.privacy.tokens.redactor import Redactor
from deltaworks.privacy.tokens.suppression import Suppression, read_suppression
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.collector import CollectorSpec

log = logging.getLogger(__name__)
RELOAD_SECONDS: Final = 60.0


@dataclass(slots=True)
class CollectorRedaction:
    """The redaction of each source of a collector, and the vault that its encrypted values are delivered to."""

    by_source: dict[str, SourceRedactor] = field(default_factory=dict)
    namespaces: dict[str, str] = field(default_factory=dict)
    vault: ObjectStore | None = None


def open_redaction(spec: CollectorSpec, catalog: Catalog, lake: ObjectStore) -> CollectorRedaction:
    """Opens the redaction of all sources whose pipelines declare personal data. Their keys are available when it
    returns.

    Raises:
        ConfigError: KEY_SERVICE_UNDECLARED, KEYRING_UNUSABLE, KEY_SERVICE_REFUSED.
        ContractError: STORED_KEY_UNREADABLE, SUPPRESSION_UNREADABLE.
        TransientError: KEY_SERVICE_UNREACHABLE, or the lake does not answer.
    """
    redaction = CollectorRedaction()
    for name, source in spec.sources.items():
        pipeline = catalog.pipeline(source.pipeline)
        if pipeline.privacy is None:
            continue
        settings = privacy_settings(pipeline, catalog.environment.lake)
        service, namespace = open_key_service(settings.keys), pipeline.privacy.namespace
        vault = redaction.vault = open_objects(settings.vault)
        sealer = Sealer(
            service,
            namespace=namespace,
            writer=spec.collector,
            day_key=partial(day_public_key, service, vault, namespace),
        )
        sealer.data_key()
        key, suppression = namespace_token_key(service, lake, namespace), read_suppression(lake, namespace)
        redaction.by_source[name] = SourceRedactor(Redactor(pipeline.privacy, key, suppression=suppression), sealer)
        redaction.namespaces[name] = namespace
    return redaction


class SuppressionReload(BackgroundThread):
    """Reloads the lists of erased subjects periodically in a thread, so that their events are dropped on arrival."""

    def __init__(self, redaction: CollectorRedaction, lake: ObjectStore, *, seconds: float = RELOAD_SECONDS) -> None:
        super().__init__(name="suppression")
        self._redaction = redaction
        self._lake = lake
        self._seconds = seconds
        self._suppressions: dict[str, Suppression] = {}

    def reload(self) -> None:
        """Reloads the lists.

        Raises:
            DeltaworksError: SUPPRESSION_UNREADABLE, or the lake does not answer.
        """
        for source, namespace in self._redaction.namespaces.items():
            previous = self._suppressions.get(source, Suppression())
            self._suppressions[source] = read_suppression(self._lake, namespace, since=previous)
            if self._suppressions[source] is not previous:
                self._redaction.by_source[source].suppress(self._suppressions[source])

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            try:
                self.reload()
            except Exception:  # keep the loaded list; the stream's parser drops events of newly erased people
                log.exception("the list of erased subjects could not be read")
