"""Summaries: small derived objects that pages read. No decision depends on them."""
