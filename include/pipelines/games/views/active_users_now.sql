-- Seconds old. Late and repeated events change nothing: a device is there once, with its newest event.
SELECT platform, country, count(*) AS active_users, max(event_time) AS newest_event_at
FROM players_now
WHERE event_time > (SELECT max(event_time) FROM players_now) - INTERVAL 5 MINUTES
GROUP BY platform, country
ORDER BY active_users DESC, platform, country
