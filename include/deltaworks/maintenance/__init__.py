"""Jobs that keep tables healthy: OPTIMIZE with Z-order, VACUUM."""
