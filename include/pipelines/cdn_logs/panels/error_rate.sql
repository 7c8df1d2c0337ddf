-- 5xx responses over all responses, by CDN.
SELECT minute, cdn, 100.0 * sum(errors_5xx) / nullif(sum(answered), 0) AS error_rate
FROM cdn_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY minute, cdn
ORDER BY minute
