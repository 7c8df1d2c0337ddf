-- 5xx responses over all responses, without requests that the client aborted.
SELECT minute, cdn, sum(errors_5xx) / nullif(sum(answered), 0) AS value, sum(answered) AS samples
FROM cdn_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY ALL
