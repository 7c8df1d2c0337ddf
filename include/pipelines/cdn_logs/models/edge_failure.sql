-- An edge is slow after three consecutive minutes in which the time to the first byte of media hits was a tenth and 20 ms above
-- the same hour of the seven days before; it ends after five minutes below. A minute is known at its end.
WITH minutes AS (
  SELECT cdn, edge, minute, sum(timed_hits) AS timed_hits, sum(first_byte_ms) AS first_byte_ms
  FROM edge_arrivals
  GROUP BY cdn, edge, minute
), usual AS (
  SELECT cdn, edge, date_add(CAST(minute AS DATE), days) AS on_date, hour(minute) AS on_hour,
    sum(first_byte_ms) / nullif(sum(timed_hits), 0) AS latency_ms
  FROM minutes LATERAL VIEW explode(sequence(1, 7)) offsets AS days
  GROUP BY cdn, edge, date_add(CAST(minute AS DATE), days), hour(minute)
), slow AS (
  SELECT minutes.cdn, minutes.edge, minutes.minute,
    CASE WHEN timed_hits >= 20 AND first_byte_ms / nullif(timed_hits, 0) > greatest(latency_ms * 1.10, latency_ms + 20)
      THEN 1 ELSE 0 END AS is_slow
  FROM minutes
  LEFT JOIN usual
    ON usual.cdn = minutes.cdn AND usual.edge = minutes.edge
    AND usual.on_date = CAST(minutes.minute AS DATE) AND usual.on_hour = hour(minutes.minute)
), lasting AS (
  SELECT cdn, edge, minute,
    sum(is_slow) OVER (PARTITION BY cdn, edge ORDER BY minute
      RANGE BETWEEN INTERVAL 2 MINUTES PRECEDING AND CURRENT ROW) AS slow_minutes
  FROM slow
)
SELECT cdn, edge, minute + INTERVAL 1 MINUTE AS minute,
  max(CASE WHEN slow_minutes = 3 THEN 1 ELSE 0 END) OVER (PARTITION BY cdn, edge ORDER BY minute
    RANGE BETWEEN INTERVAL 4 MINUTES PRECEDING AND CURRENT ROW) = 1 AS holds
FROM lasting
