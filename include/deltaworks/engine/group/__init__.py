"""Stream groups: several pipelines in one driver process, each with its own query and restarts."""
