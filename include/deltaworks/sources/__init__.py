"""Where batches come from: each source turns what a transport delivers into rows with a replayable
position."""
