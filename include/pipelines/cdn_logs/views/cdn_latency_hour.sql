-- From additive buckets: the logarithmic middle of the bucket that contains the percentile.
WITH hours AS (
  SELECT date_trunc('hour', minute) AS hour, cdn, edge, isp, bucket, sum(media_hits) AS media_hits
  FROM latency_histogram GROUP BY ALL
), upto AS (
  SELECT *, sum(media_hits) OVER (PARTITION BY hour, cdn, edge, isp ORDER BY bucket) AS so_far,
    sum(media_hits) OVER (PARTITION BY hour, cdn, edge, isp) AS total
  FROM hours
)
SELECT hour, cdn, edge, isp, total::BIGINT AS media_hits,
  10 ** ((min(bucket) FILTER (WHERE so_far >= 0.5 * total) + 0.5) / 100) AS first_byte_ms_p50,
  10 ** ((min(bucket) FILTER (WHERE so_far >= 0.95 * total) + 0.5) / 100) AS first_byte_ms_p95,
  10 ** ((min(bucket) FILTER (WHERE so_far >= 0.99 * total) + 0.5) / 100) AS first_byte_ms_p99
FROM upto
GROUP BY hour, cdn, edge, isp, total
