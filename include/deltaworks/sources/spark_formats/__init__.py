"""The sources as Spark formats of their own, for queries outside of a pipeline."""
