SELECT 'country' AS filter, coalesce(country, 'unknown') AS value FROM players_now WHERE event_time >= $from
UNION
SELECT 'platform', coalesce(platform, 'unknown') FROM players_now WHERE event_time >= $from
