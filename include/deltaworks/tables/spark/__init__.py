"""Delta through Spark: the session, commit metadata, retries after conflicts."""
