-- Fraction of the sessions of a minute that crashed, by version.
SELECT date_trunc('minute', event_time) AS minute, coalesce(app_version, 'unknown') AS app_version,
  count(DISTINCT session_id) FILTER (event_name = 'crash') / count(DISTINCT session_id) AS value,
  count(DISTINCT session_id) AS samples
FROM events
WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
GROUP BY ALL
