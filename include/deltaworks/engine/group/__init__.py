"""Stream groups: several pipelines in one driver, with one query each, supervised separately."""
