"""Table health from Delta logs: measures, scores, snapshots, reports."""
