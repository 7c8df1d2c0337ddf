-- Probability that a viewer plays nothing in the 28 days after a Sunday, by the model valid then.
SELECT cutoff_date, user_id, model, score, threshold FROM viewer_inactivity
