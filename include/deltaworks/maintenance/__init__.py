"""Table maintenance: OPTIMIZE with Z-order, VACUUM, orphan removal, table health."""
