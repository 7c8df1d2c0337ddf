"""Erasure of a person with proof: what a request names is suppressed, shredded, purged, vacuumed, scanned, certified."""
