"""Generates test events for the pipelines: a simulated mobile game, a market, video viewers, a sales platform, or JSON
lines.

`generator.games.deliveries` simulates players and yields the objects of a delivery stream, with faults at configured
rates. `generator.truth` counts the expected table contents during generation. `generator.replay` splits a file of JSON
lines into objects. Generators do not read the system clock: the seed alone determines every byte.
"""
