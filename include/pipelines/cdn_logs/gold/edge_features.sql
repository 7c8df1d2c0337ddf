-- State of an edge at a minute: sums over the last 1, 5, 15 and 60 minutes of data that had arrived by then. A row exists if
-- data arrived within the last five minutes. The baseline is the same hour of the seven days before, as known when the date
-- began.
WITH arrivals AS (
  SELECT *, explode(sequence(
      greatest(arrived_at, minute + INTERVAL 1 MINUTE), minute + INTERVAL 60 MINUTES, INTERVAL 1 MINUTE)) AS seen_at
  FROM edge_arrivals
  WHERE arrived_at <= minute + INTERVAL 60 MINUTES
), windows AS (
  SELECT seen_at, cdn, edge,
    sum(CASE WHEN minute >= seen_at - INTERVAL 1 MINUTE THEN requests END) AS requests_1,
    sum(CASE WHEN minute >= seen_at - INTERVAL 1 MINUTE THEN answered END) AS answered_1,
    sum(CASE WHEN minute >= seen_at - INTERVAL 1 MINUTE THEN errors END) AS errors_1,
    sum(CASE WHEN minute >= seen_at - INTERVAL 1 MINUTE THEN cacheable END) AS cacheable_1,
    sum(CASE WHEN minute >= seen_at - INTERVAL 1 MINUTE THEN hits END) AS hits_1,
    sum(CASE WHEN minute >= seen_at - INTERVAL 1 MINUTE THEN timed_hits END) AS timed_hits_1,
    sum(CASE WHEN minute >= seen_at - INTERVAL 1 MINUTE THEN first_byte_ms END) AS first_byte_ms_1,
    sum(CASE WHEN minute >= seen_at - INTERVAL 1 MINUTE THEN seconds END) AS seconds_1,
    sum(CASE WHEN minute >= seen_at - INTERVAL 5 MINUTE THEN requests END) AS requests_5,
    sum(CASE WHEN minute >= seen_at - INTERVAL 5 MINUTE THEN answered END) AS answered_5,
    sum(CASE WHEN minute >= seen_at - INTERVAL 5 MINUTE THEN errors END) AS errors_5,
    sum(CASE WHEN minute >= seen_at - INTERVAL 5 MINUTE THEN cacheable END) AS cacheable_5,
    sum(CASE WHEN minute >= seen_at - INTERVAL 5 MINUTE THEN hits END) AS hits_5,
    sum(CASE WHEN minute >= seen_at - INTERVAL 5 MINUTE THEN timed_hits END) AS timed_hits_5,
    sum(CASE WHEN minute >= seen_at - INTERVAL 5 MINUTE THEN first_byte_ms END) AS first_byte_ms_5,
    sum(CASE WHEN minute >= seen_at - INTERVAL 5 MINUTE THEN seconds END) AS seconds_5,
    sum(CASE WHEN minute >= seen_at - INTERVAL 15 MINUTE THEN requests END) AS requests_15,
    sum(CASE WHEN minute >= seen_at - INTERVAL 15 MINUTE THEN answered END) AS answered_15,
    sum(CASE WHEN minute >= seen_at - INTERVAL 15 MINUTE THEN errors END) AS errors_15,
    sum(CASE WHEN minute >= seen_at - INTERVAL 15 MINUTE THEN cacheable END) AS cacheable_15,
    sum(CASE WHEN minute >= seen_at - INTERVAL 15 MINUTE THEN hits END) AS hits_15,
    sum(CASE WHEN minute >= seen_at - INTERVAL 15 MINUTE THEN timed_hits END) AS timed_hits_15,
    sum(CASE WHEN minute >= seen_at - INTERVAL 15 MINUTE THEN first_byte_ms END) AS first_byte_ms_15,
    sum(CASE WHEN minute >= seen_at - INTERVAL 15 MINUTE THEN seconds END) AS seconds_15,
    sum(requests) AS requests_60,
    sum(answered) AS answered_60,
    sum(errors) AS errors_60,
    sum(cacheable) AS cacheable_60,
    sum(hits) AS hits_60,
    sum(timed_hits) AS timed_hits_60,
    sum(first_byte_ms) AS first_byte_ms_60,
    sum(seconds) AS seconds_60
  FROM arrivals
  GROUP BY seen_at, cdn, edge
  HAVING max(arrived_at) > seen_at - INTERVAL 5 MINUTES
), usual AS (
  SELECT date_add(event_date, days) AS on_date, hour(minute) AS on_hour, cdn, edge,
    sum(errors) / nullif(sum(answered), 0) AS error_rate,
    sum(first_byte_ms) / nullif(sum(timed_hits), 0) AS latency_ms,
    sum(hits) / nullif(sum(cacheable), 0) AS hit_ratio,
    sum(requests) / (60 * count(DISTINCT event_date)) AS requests,
    sum(seconds) / (3600 * count(DISTINCT event_date)) AS concurrency
  FROM edge_arrivals LATERAL VIEW explode(sequence(1, 7)) offsets AS days
  WHERE arrived_at <= CAST(date_add(event_date, days) AS TIMESTAMP)
  GROUP BY date_add(event_date, days), hour(minute), cdn, edge
), rates AS (
  SELECT CAST(seen_at AS DATE) AS event_date, seen_at AS minute, cdn, edge,
    coalesce(errors_1, 0) / nullif(answered_1, 0) AS error_1,
    first_byte_ms_1 / nullif(timed_hits_1, 0) AS latency_1,
    hits_1 / nullif(cacheable_1, 0) AS hit_1,
    coalesce(requests_1, 0) / 1 AS requests_1,
    coalesce(seconds_1, 0) / 60 AS concurrency_1,
    coalesce(errors_5, 0) / nullif(answered_5, 0) AS error_5,
    first_byte_ms_5 / nullif(timed_hits_5, 0) AS latency_5,
    hits_5 / nullif(cacheable_5, 0) AS hit_5,
    coalesce(requests_5, 0) / 5 AS requests_5,
    coalesce(seconds_5, 0) / 300 AS concurrency_5,
    coalesce(errors_15, 0) / nullif(answered_15, 0) AS error_15,
    first_byte_ms_15 / nullif(timed_hits_15, 0) AS latency_15,
    hits_15 / nullif(cacheable_15, 0) AS hit_15,
    coalesce(requests_15, 0) / 15 AS requests_15,
    coalesce(seconds_15, 0) / 900 AS concurrency_15,
    coalesce(errors_60, 0) / nullif(answered_60, 0) AS error_60,
    first_byte_ms_60 / nullif(timed_hits_60, 0) AS latency_60,
    hits_60 / nullif(cacheable_60, 0) AS hit_60,
    coalesce(requests_60, 0) / 60 AS requests_60,
    coalesce(seconds_60, 0) / 3600 AS concurrency_60
  FROM windows
)
SELECT rates.*,
  error_5 - error_15 AS error_slope,
  latency_5 - latency_15 AS latency_slope,
  hit_5 - hit_15 AS hit_slope,
  requests_5 - requests_15 AS requests_slope,
  concurrency_5 - concurrency_15 AS concurrency_slope,
  error_5 - usual.error_rate AS error_over,
  latency_5 / nullif(usual.latency_ms, 0) AS latency_over,
  hit_5 - usual.hit_ratio AS hit_over,
  requests_5 / nullif(usual.requests, 0) AS requests_over,
  concurrency_5 / nullif(usual.concurrency, 0) AS concurrency_over
FROM rates
LEFT JOIN usual
  ON usual.on_date = rates.event_date AND usual.on_hour = hour(rates.minute)
  AND usual.cdn = rates.cdn AND usual.edge = rates.edge
