"""The sources as Spark formats, for queries outside a pipeline."""
