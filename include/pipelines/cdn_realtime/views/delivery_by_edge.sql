-- A request id counts once. Requests that the client aborted (status 000) are no answers and have no share. The current time is that
-- of the newest request, by the edges' clocks.
WITH newest AS (SELECT max(event_time) AS newest_at FROM requests WHERE event_date >= (SELECT max(event_date) FROM requests)),
recent AS (
  SELECT r.edge, r.event_id, any_value(r.status) AS status, any_value(r.first_byte_seconds) AS first_byte_seconds
  FROM newest AS n JOIN requests AS r
    ON r.event_date >= (n.newest_at - INTERVAL 5 MINUTE)::DATE AND r.event_time > n.newest_at - INTERVAL 5 MINUTE
  GROUP BY r.edge, r.event_id
)
SELECT edge, count(*) AS requests,
  count(*) FILTER (status LIKE '5__') / nullif(count(*) FILTER (status <> '000'), 0) AS error_share,
  1000 * quantile_cont(first_byte_seconds, 0.5) AS first_byte_ms_p50,
  1000 * quantile_cont(first_byte_seconds, 0.95) AS first_byte_ms_p95
FROM recent
GROUP BY edge
ORDER BY requests DESC, edge
