-- The baseline are the hours of the same time of day on the seven dates before, if three of them have a minute of play.
WITH hours AS (
  SELECT time_bucket(INTERVAL 1 HOUR, minute) AS hour, coalesce(isp, 'unknown') AS isp, coalesce(region, 'unknown') AS region,
    sum(played_ms) AS played_ms, sum(stalled_ms) / nullif(sum(played_ms) + sum(stalled_ms), 0) AS rebuffer_ratio
  FROM qos_minute
  GROUP BY ALL
  HAVING sum(played_ms) >= 60000
), compared AS (
  SELECT now.hour, now.isp, now.region, any_value(now.played_ms) AS played_ms, any_value(now.rebuffer_ratio) AS rebuffer_ratio,
    count(past.hour) AS days, median(past.rebuffer_ratio) AS median_ratio, min(past.rebuffer_ratio) AS low, max(past.rebuffer_ratio) AS high
  FROM hours AS now LEFT JOIN hours AS past
    ON past.isp = now.isp AND past.region = now.region AND past.hour < now.hour AND past.hour >= now.hour - INTERVAL 7 DAY
    AND extract(HOUR FROM past.hour) = extract(HOUR FROM now.hour)
  GROUP BY now.hour, now.isp, now.region
)
SELECT hour, isp, region, played_ms, rebuffer_ratio, days,
  CASE WHEN days >= 3 THEN median_ratio END AS usual,
  CASE WHEN days >= 3 THEN low END AS usual_low,
  CASE WHEN days >= 3 THEN high END AS usual_high
FROM compared
