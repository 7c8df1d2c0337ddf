"""The streaming engine: each batch prepared once, committed to every table, recorded in the ledger."""
