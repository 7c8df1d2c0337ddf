-- What players say of views beside what the CDN logged of them.
SELECT cdn, edge, sum(views)::BIGINT AS views, max(rebuffer_ratio) AS "rebuffer ratio", max(starvation) AS starvation,
  round(max(first_byte_ms), 1) AS "first byte, ms"
FROM delivery_by_edge
WHERE event_date >= $from::DATE AND event_date < $to
GROUP BY cdn, edge
ORDER BY 4 DESC NULLS LAST
LIMIT 15
