-- Media hits of a minute by how long their first byte took, in buckets that add up.
SELECT minute, cdn, bucket, sum(media_hits) AS samples
FROM latency_histogram
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY ALL
