-- 95th percentile of the time to the first frame per quarter of an hour, within 2.4 %, from additive buckets.
WITH quarters AS (
  SELECT time_bucket(INTERVAL 15 MINUTE, minute) AS quarter, bucket, sum(plays) AS plays
  FROM startup_histogram
  WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  AND ($cdn IS NULL OR coalesce(cdn, 'unknown') = $cdn)
  AND ($isp IS NULL OR coalesce(isp, 'unknown') = $isp)
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
  GROUP BY ALL
), upto AS (
  SELECT *, sum(plays) OVER (PARTITION BY quarter ORDER BY bucket) AS so_far, sum(plays) OVER (PARTITION BY quarter) AS total
  FROM quarters
)
SELECT quarter, 10 ** ((min(bucket) FILTER (WHERE so_far >= 0.95 * total) + 0.5) / 100) / 1000 AS seconds
FROM upto
GROUP BY quarter
ORDER BY quarter
