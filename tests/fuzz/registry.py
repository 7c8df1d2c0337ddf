"""The fuzzer's targets by name, each imported on first use, so that a run of one does not load the others."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

PAYLOADS = ("json", "csv", "tsv", "text", "avro", "parquet", "compressed")
NAMES = (*PAYLOADS, "kafka", "kinesis", "messages", "declarations")


@cache
def target(name: str) -> Target:
    """Returns the target with this name.

    Raises:
        KeyError: there is no such target.
    """
    if name in PAYLOADS:
        from tests.fuzz.payload_targets import PAYLOAD_TARGETS

        return PAYLOAD_TARGETS[name]
    if name in ("kafka", "kinesis"):
        from tests.fuzz.stream_records import KafkaTarget, KinesisTarget

        return KafkaTarget() if name == "kafka" else KinesisTarget()
    if name == "messages":
        from tests.fuzz.queue_messages import MessageTarget

        return MessageTarget()
    if name == "declarations":
        from tests.fuzz.declarations import DeclarationTarget

        return DeclarationTarget()
    raise KeyError(name)
