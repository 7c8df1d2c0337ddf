"""Delta through Spark: sessions, commit metadata, and retries after conflicts."""
