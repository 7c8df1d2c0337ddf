"""The ways back: replay of quarantine, reprocess, restore, recovery, starting over, cleaning of sources."""
