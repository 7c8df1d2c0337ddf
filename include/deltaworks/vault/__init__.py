"""The vault: what tokens stand for, sealed under a key a subject; opened by its own job and by a reveal alone."""
