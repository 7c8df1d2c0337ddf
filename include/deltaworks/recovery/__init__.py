"""Recovery operations: quarantine replay, reprocess, restore, repair, starting over, and cleanup of landed objects."""
