"""Lineage: OpenLineage events on the datasets and columns that streams, gold builds and mutations read and write."""
