"""Personal data on its way: tokens, the walker that strips events, keys, what is sealed, and who is suppressed."""
