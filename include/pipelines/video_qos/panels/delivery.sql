-- Quality reported by players and delivery logged by the CDN; without an edge if the CDN logged nothing.
SELECT coalesce(cdn, 'nothing logged') AS cdn, coalesce(edge, '') AS edge, sum(views)::BIGINT AS views,
  round(100 * max(rebuffer_ratio), 2) AS "rebuffering, %", round(100 * max(starvation), 2) AS "starved requests, %",
  round(max(first_byte_ms), 1) AS "first byte, ms"
FROM delivery_by_edge
WHERE event_date >= $from::DATE AND event_date < $to
GROUP BY ALL
ORDER BY 4 DESC NULLS LAST
LIMIT 15
