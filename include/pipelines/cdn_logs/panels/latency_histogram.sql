-- Media hits by time to the first byte, in bins of a quarter of a decade: on a linear axis most would be in the first bin.
SELECT format('{:g} to {:g} ms', round(10 ** (bin / 4), 1), round(10 ** ((bin + 1) / 4), 1)) AS "first byte", media_hits
FROM (
  SELECT floor(bucket / 25) AS bin, sum(media_hits)::BIGINT AS media_hits
  FROM latency_histogram
  WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  GROUP BY bin
)
ORDER BY bin
