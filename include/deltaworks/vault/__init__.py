"""The vault: values behind tokens, encrypted with a key per subject; opened only by its job and by reveals."""
