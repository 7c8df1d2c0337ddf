SELECT minute, cdn, edge, sum(requests)::BIGINT AS requests,
  sum(errors_5xx) / nullif(sum(answered), 0) AS error_rate,
  sum(hits) / nullif(sum(cacheable), 0) AS hit_ratio,
  sum(hit_bytes) / nullif(sum(cacheable_bytes), 0) AS hit_ratio_bytes,
  sum(bytes) / nullif(sum(seconds), 0) AS bytes_per_second,
  sum(starved_requests) / nullif(sum(player_requests), 0) AS starvation
FROM cdn_minute
GROUP BY minute, cdn, edge
