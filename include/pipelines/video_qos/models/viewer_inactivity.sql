-- Dates on which a viewer played.
SELECT DISTINCT user_id, event_date AS cutoff_date, true AS holds FROM viewer_plays WHERE is_played
