-- Media hits of a minute by time to the first byte, in additive buckets.
SELECT minute, 'cloudfront' AS cdn, bucket, sum(media_hits) AS samples
FROM latency_histogram
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY ALL
