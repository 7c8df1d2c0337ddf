"""Sources of events: objects, Kafka, Kinesis and Delta tables, one package each."""

from __future__ import annotations

from deltaworks.sources.pandas_blocker import block_pandas_in_planners

# Must run before the first import of a source, because sources import pyarrow.
block_pandas_in_planners()
