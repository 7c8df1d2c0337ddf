"""Table maintenance: OPTIMIZE with Z-order, VACUUM, removal of orphaned files, and table health."""
