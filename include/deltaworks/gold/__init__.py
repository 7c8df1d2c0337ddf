"""Gold tables: built by SQL from deduplicated events, rebuilt incrementally when their inputs change."""
