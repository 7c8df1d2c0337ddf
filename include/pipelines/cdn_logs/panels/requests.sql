-- Requests of each minute by edge.
SELECT minute, edge, sum(requests)::BIGINT AS requests
FROM cdn_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY minute, edge
ORDER BY minute
