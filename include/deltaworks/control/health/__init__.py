"""Whether streams and relays work, judged from heartbeats: facts, limits, verdicts."""
