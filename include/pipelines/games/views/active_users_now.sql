-- Seconds old. Late and repeated events change nothing: a device is there once, with its newest event. Now is the newest
-- event, and no later than it is here: a device whose clock is ahead neither counts nor hides the others.
SELECT platform, country, count(*) AS active_users, max(event_time) AS newest_event_at
FROM players_now
WHERE event_time > least((SELECT max(event_time) FROM players_now), now()) - INTERVAL 5 MINUTES AND event_time <= now()
GROUP BY platform, country
ORDER BY active_users DESC, platform, country
