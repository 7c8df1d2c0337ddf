-- Fraction of the sessions of five minutes with an error that the game caught, by platform.
WITH errors AS (
  SELECT DISTINCT session_id
  FROM crash
  WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to AND NOT coalesce(fatal, true)
)
SELECT time_bucket(INTERVAL 5 MINUTES, event_time) AS minute, platform,
  count(DISTINCT errors.session_id) / count(DISTINCT events.session_id) AS value,
  count(DISTINCT events.session_id) AS samples
FROM events LEFT JOIN errors ON errors.session_id = events.session_id AND event_name = 'crash'
WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
GROUP BY ALL
