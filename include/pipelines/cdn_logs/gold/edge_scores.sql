-- Probability that an edge becomes slow within the horizon, by the model valid at that minute.
SELECT event_date, minute, cdn, edge, model, score, threshold FROM edge_failure
