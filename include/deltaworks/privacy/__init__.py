"""Personal data: keys, tokens, the vault of original values, and erasure of a person."""
