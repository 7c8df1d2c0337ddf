"""A source of records: the shards of a Kinesis stream."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from deltaworks.specs.base import Bytes
from deltaworks.specs.effects import FIRST_START, NEXT_START, OTHER_LOG
from deltaworks.specs.sources.payload import RecordSourceSpec


class KinesisSourceSpec(RecordSourceSpec):
    """The shards of a Kinesis stream, reached as the environment's `messaging` is."""

    kind: Annotated[Literal["kinesis"], OTHER_LOG]
    stream: Annotated[str, OTHER_LOG] = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    initial_position: Annotated[Literal["trim_horizon", "latest"], FIRST_START] = "trim_horizon"
    max_records_per_batch: Annotated[int, NEXT_START] = Field(default=500_000, ge=1)
    max_bytes_per_batch: Annotated[Bytes, NEXT_START] = 256 << 20
    allow_data_loss: Annotated[bool, NEXT_START] = Field(
        default=False, description="go on behind records that expired unread"
    )
    consumer_mode: Annotated[Literal["polling", "fan_out"], NEXT_START] = Field(
        default="polling", description="fan_out: records are pushed to a registered consumer of this pipeline's own"
    )
    consumer_name: Annotated[str | None, NEXT_START] = Field(
        default=None,
        pattern=r"^[a-zA-Z0-9_.-]{1,128}$",
        description="of this pipeline alone; deltaworks-PIPELINE unless given",
    )

    def place(self) -> str:
        """What is read, for people."""
        return self.stream

    def name_of_consumer(self, pipeline: str) -> str:
        """What the pipeline's own consumer of the stream is called."""
        return self.consumer_name or f"deltaworks-{pipeline}"
