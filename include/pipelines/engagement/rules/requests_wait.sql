-- Fraction of the requests of five minutes that arrived more than ten minutes late.
SELECT time_bucket(INTERVAL 5 MINUTES, event_time) AS minute,
  avg((_ingested_at - event_time > INTERVAL 10 MINUTES)::INT) AS value, count(*) AS samples
FROM requests
WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
GROUP BY ALL
