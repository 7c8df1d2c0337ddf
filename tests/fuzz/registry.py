"""The targets of the fuzzer by name. Each is imported when it is first asked for: a run of one needs not the others."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

PAYLOADS = ("json", "csv", "tsv", "text", "avro", "parquet", "compressed")
NAMES = (*PAYLOADS, "kafka", "kinesis", "messages", "declarations")


@cache
def target(name: str) -> Target:
    """The target called `name`.

    Raises:
        KeyError: there is none.
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
