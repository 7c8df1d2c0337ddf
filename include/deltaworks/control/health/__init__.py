"""Health of streams, relays, collectors and vaults, evaluated from heartbeats."""
