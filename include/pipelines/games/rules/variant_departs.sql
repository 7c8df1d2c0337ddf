-- Bookings per active device and hour, by the variant to which it was assigned within the two weeks before.
WITH exposed AS (
  SELECT experiment, device_id, arg_max(variant, event_time) AS variant
  FROM experiment_exposure
  WHERE event_date >= $from::DATE - 14 AND event_time < $to
  GROUP BY experiment, device_id
), active AS (
  SELECT DISTINCT time_bucket(INTERVAL 1 HOUR, event_time) AS hour, device_id
  FROM events
  WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
), paid AS (
  SELECT time_bucket(INTERVAL 1 HOUR, event_time) AS hour, device_id, sum(amount) AS amount
  FROM purchase
  WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
  GROUP BY ALL
)
SELECT hour AS minute, experiment, variant,
  sum(coalesce(paid.amount, 0))::DOUBLE / count(*) AS value, count(*) AS samples
FROM active JOIN exposed USING (device_id) LEFT JOIN paid USING (hour, device_id)
GROUP BY ALL
