-- Fraction of the sessions of a minute that crashed, by version; errors that the game caught are those of error_rate.
WITH crashed AS (
  SELECT DISTINCT session_id
  FROM crash
  WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to AND coalesce(fatal, true)
)
SELECT date_trunc('minute', event_time) AS minute, coalesce(app_version, 'unknown') AS app_version,
  count(DISTINCT crashed.session_id) / count(DISTINCT events.session_id) AS value,
  count(DISTINCT events.session_id) AS samples
FROM events LEFT JOIN crashed ON crashed.session_id = events.session_id AND event_name = 'crash'
WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
GROUP BY ALL
