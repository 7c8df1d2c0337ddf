"""Lineage: OpenLineage events of what streams, gold builds and mutations read and write, with columns."""
