-- How likely an edge begins to be slow within the horizon, by the model that was in force at the minute.
SELECT event_date, minute, cdn, edge, model, score, threshold FROM edge_failure
