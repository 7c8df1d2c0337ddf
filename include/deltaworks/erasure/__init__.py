"""Erasure of a person with proof: suppressed, shredded, purged, vacuumed, looked for everywhere, certified."""
