"""Where events come from: objects, Kafka, Kinesis and Delta tables, each a folder."""

from __future__ import annotations

from deltaworks.sources.planner_process import keep_pandas_out

# Before any source is imported: those load pyarrow.
keep_pandas_out()
