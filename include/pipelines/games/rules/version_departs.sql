-- Purchases per session of a minute, by version.
WITH active AS (
  SELECT date_trunc('minute', event_time) AS minute, coalesce(app_version, 'unknown') AS app_version,
    count(DISTINCT session_id) AS sessions
  FROM events
  WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
  GROUP BY ALL
), paid AS (
  SELECT date_trunc('minute', event_time) AS minute, coalesce(app_version, 'unknown') AS app_version, count(*) AS purchases
  FROM purchase
  WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
  GROUP BY ALL
)
SELECT minute, app_version, coalesce(purchases, 0) / sessions AS value, sessions AS samples
FROM active LEFT JOIN paid USING (minute, app_version)
