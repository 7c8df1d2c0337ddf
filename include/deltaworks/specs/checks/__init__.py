"""What would fail later: the mistakes of all declarations of a project at once, and those of its gold SQL."""
