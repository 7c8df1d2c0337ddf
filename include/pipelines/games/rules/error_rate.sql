-- Fraction of the sessions of a minute with an error that the game caught, by version.
WITH errors AS (
  SELECT DISTINCT session_id
  FROM crash
  WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to AND NOT coalesce(fatal, true)
)
SELECT date_trunc('minute', event_time) AS minute, coalesce(app_version, 'unknown') AS app_version,
  count(DISTINCT errors.session_id) / count(DISTINCT events.session_id) AS value,
  count(DISTINCT events.session_id) AS samples
FROM events LEFT JOIN errors ON errors.session_id = events.session_id AND event_name = 'crash'
WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
GROUP BY ALL
