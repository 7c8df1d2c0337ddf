"""Events to feed the pipelines with: a simulated mobile game, and the replay of any file of JSON lines.

`generator.games.deliveries` simulates players and yields the objects a delivery stream would land, with faults at
set rates; `generator.truth` counts, while they are made, what the tables must say afterwards;
`generator.replay` lands a file of JSON lines piece by piece. No wall clock is read: a seed decides every byte.
"""
