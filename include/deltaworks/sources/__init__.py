"""Where events come from: objects, Kafka, Kinesis and Delta tables, each a folder."""

from __future__ import annotations

from deltaworks.sources.pandas_blocker import block_pandas_in_planners

# Before any source is imported: those load pyarrow.
block_pandas_in_planners()
