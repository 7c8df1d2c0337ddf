-- 5xx responses over all responses, without requests that the client aborted.
SELECT date_trunc('minute', event_time) AS minute, 'cloudfront' AS cdn,
  count(*) FILTER (status LIKE '5%') / count(*) AS value, count(*) AS samples
FROM requests
WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to AND coalesce(status, '000') <> '000'
GROUP BY ALL
