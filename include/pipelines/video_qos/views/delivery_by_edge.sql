SELECT event_date, cdn, edge, count(*) AS views,
  sum(stalled_ms) / nullif(sum(played_ms) + sum(stalled_ms), 0) AS rebuffer_ratio,
  sum(starved_requests) / nullif(sum(requests), 0) AS starvation,
  sum(first_byte_ms) / nullif(sum(first_bytes), 0) AS first_byte_ms
FROM view_delivery
GROUP BY event_date, cdn, edge
