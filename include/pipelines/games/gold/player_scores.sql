-- Probability that a player does not play in the 28 days after a Sunday, by the model valid then.
SELECT cutoff_date, device_id, model, score, threshold FROM player_inactivity
