"""Groups of streams: several pipelines in one driver, a query each, watched one by one."""
