-- Dates on which a device sent an event.
SELECT DISTINCT device_id, event_date AS cutoff_date, true AS holds FROM player_days
