-- Fraction of the requests that arrived in a minute more than ten minutes late. Requests of more than a day ago are history.
SELECT date_trunc('minute', _ingested_at) AS minute,
  avg((_ingested_at - event_time > INTERVAL 10 MINUTES)::INT) AS value, count(*) AS samples
FROM requests
WHERE event_date >= $from::DATE - 1 AND _ingested_at >= $from AND _ingested_at < $to
  AND event_time >= _ingested_at - INTERVAL 1 DAY
GROUP BY ALL
