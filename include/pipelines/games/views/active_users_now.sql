-- Seconds old. Late and repeated events change nothing: each device counts once, with its newest event. The current time is that
-- of the newest event, capped at the clock: a device whose clock is ahead is not counted and hides no others.
SELECT platform, country, count(*) AS active_users, max(event_time) AS newest_event_at
FROM players_now
WHERE event_time > least((SELECT max(event_time) FROM players_now), now()) - INTERVAL 5 MINUTES AND event_time <= now()
GROUP BY platform, country
ORDER BY active_users DESC, platform, country
