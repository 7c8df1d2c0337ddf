-- A view counts from its first to its last event, inclusive.
WITH steps AS (
  SELECT started_at AS instant, 1 AS step FROM views
  UNION ALL SELECT ended_at + INTERVAL 1 MICROSECOND, -1 FROM views
), changes AS (SELECT instant, sum(step) AS change FROM steps GROUP BY instant),
levels AS (SELECT instant, sum(change) OVER (ORDER BY instant) AS at_once FROM changes)
SELECT date_trunc('minute', instant) AS minute, max(at_once)::BIGINT AS most_at_once
FROM levels GROUP BY 1
