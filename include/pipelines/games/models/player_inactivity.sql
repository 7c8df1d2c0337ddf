-- The dates on which a device sent any event of the game.
SELECT DISTINCT device_id, event_date AS cutoff_date, true AS holds FROM player_days
