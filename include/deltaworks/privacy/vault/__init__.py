"""The vault: the original values of tokens, encrypted with a key per subject. Only its job and reveals open it."""
