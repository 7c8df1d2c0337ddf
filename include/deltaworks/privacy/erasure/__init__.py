"""Erasure of a person with proof: suppress, destroy keys, purge rows, VACUUM, scan for leaks, certify."""
