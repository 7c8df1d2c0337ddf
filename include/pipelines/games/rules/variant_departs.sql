-- Purchases per active device and minute, by the variant to which it was assigned on this date or the one before.
WITH exposed AS (
  SELECT experiment, device_id, arg_max(variant, event_time) AS variant
  FROM experiment_exposure
  WHERE event_date >= $from::DATE - 1 AND event_time < $to
  GROUP BY experiment, device_id
), active AS (
  SELECT DISTINCT date_trunc('minute', event_time) AS minute, device_id
  FROM events
  WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
), paid AS (
  SELECT date_trunc('minute', event_time) AS minute, device_id, count(*) AS purchases
  FROM purchase
  WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
  GROUP BY ALL
)
SELECT minute, experiment, variant, sum(coalesce(purchases, 0)) / count(*) AS value, count(*) AS samples
FROM active JOIN exposed USING (device_id) LEFT JOIN paid USING (minute, device_id)
GROUP BY ALL
