"""The process of one remediation: reads its queue, handles notifications, and continues pending actions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.leased_process import LeasedProcess
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError, TransientError
from deltaworks.remediation.notifications import UnusableMessage, parse_notification
from deltaworks.remediation.remediator import Remediator
from deltaworks.sources.objects.relay.queue import Message, NotificationQueue
from deltaworks.specs.base import resolve_text
from deltaworks.specs.catalog import Catalog, find_by_name
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.environment_sections import RemediationSpec

log = logging.getLogger(__name__)
LEASE_SECONDS = 30.0
MAX_RUN_SECONDS = 14_400.0
_RETRY_SECONDS = 5.0


@dataclass(slots=True)
class RemediationCounts:
    """Counts of a run: received, handled and unusable messages."""

    messages: int = 0
    accepted: int = 0
    unusable: int = 0


class MessageQueue(Protocol):
    """The operations of SQS that a remediation uses."""

    def receive(self) -> list[Message]: ...

    def delete(self, messages: list[Message]) -> object: ...

    def return_messages(self, messages: list[Message]) -> object: ...


class RemediationProcess:
    """One run of a remediation. `run` returns at its time limit or when a stop is requested.

    Args:
        queue, remediator: replacements for tests; by default as declared.
        on_tick: called every few seconds, so that a stall is detected.
    """

    def __init__(
        self,
        environment: EnvironmentSpec,
        spec: RemediationSpec,
        *,
        queue: MessageQueue | None = None,
        remediator: Remediator | None = None,
        on_tick: Callable[[], None] = lambda: None,
        max_run_seconds: float = MAX_RUN_SECONDS,
    ) -> None:
        self._spec = spec
        self._objects = open_objects(environment.lake)
        self._queue = queue or NotificationQueue(environment.messaging, resolve_text(spec.queue_url))
        self._leased_process = LeasedProcess(
            self._objects,
            paths.remediation_control(spec.name),
            name=dag_id(spec.name, "remediation"),
            ttl_seconds=LEASE_SECONDS,
            max_run_seconds=max_run_seconds,
        )
        self._remediator = remediator or Remediator(spec, self._objects, pause=self._leased_process.pause)
        self._on_tick = on_tick
        self.counts = RemediationCounts()

    def stop(self, *, immediately: bool = False) -> None:
        """Requests a stop; pending actions are recorded. Callable from a signal handler."""
        self._leased_process.stop()

    def run(self) -> RemediationCounts:
        """Handles notifications until the run ends.

        Raises:
            ConcurrencyError: LEASE_HELD. FencedError: LEASE_LOST. ConfigError: QUEUE_REFUSED.
        """
        with self._leased_process.hold_lease(on_tick=self._on_tick):
            while not self._leased_process.should_stop:
                try:
                    self.run_once()
                except TransientError as error:
                    # Either no action was started, or it is recorded and the next round continues it.
                    log.warning("remediation=%s waits: %s", self._spec.name, error)
                    self._leased_process.pause(_RETRY_SECONDS)
        return self.counts

    def run_once(self) -> None:
        """Continues pending actions, then handles the queue's messages."""
        self._remediator.resume_pending()
        for message in self._queue.receive():
            if self._leased_process.should_stop and not self._leased_process.holds_lease:
                return
            self._handle(message)
        self._leased_process.heartbeat.update(state="idle", last_batch_at=iso_now(), rows=self.counts.accepted)

    def _handle(self, message: Message) -> None:
        self.counts.messages += 1
        try:
            notification = parse_notification(message.body)
        except UnusableMessage as error:
            self.counts.unusable += 1
            log.warning("message=%s cannot be handled and is stored: %s", message.message_id, error)
            key = paths.unusable_message(self._spec.name, message.message_id)
            self._objects.put(key, message.body.encode("utf-8", "surrogatepass"))
        else:
            try:
                self.counts.accepted += self._remediator.handle_notification(notification) is not None
            except TransientError:
                self._queue.return_messages([message])
                raise
        # Deleted last: an unrecorded message is delivered again.
        self._queue.delete([message])


def open_remediation(catalog: Catalog, name: str, on_tick: Callable[[], None]) -> RemediationProcess:
    """Opens the process of a remediation.

    Raises:
        ConfigError: REMEDIATION_UNKNOWN, REFERENCE_UNRESOLVED.
    """
    return RemediationProcess(catalog.environment, find_remediation(catalog, name), on_tick=on_tick)


def find_remediation(catalog: Catalog, name: str) -> RemediationSpec:
    """Returns a declared remediation.

    Raises:
        ConfigError: REMEDIATION_UNKNOWN with the closest name.
    """
    declared = {spec.name: spec for spec in catalog.environment.remediations}
    if not declared:
        raise ConfigError(
            "REMEDIATION_UNKNOWN",
            f"Remediation {name!r} does not exist: environment {catalog.environment.environment} declares none.",
            hint="Declare it under `remediations` of the environment.",
        )
    return find_by_name(name, declared, "remediation")
