-- Plays by time to the first frame, in bins of a quarter of a decade.
SELECT format('{:g} to {:g} s', round(10 ** (bin / 4) / 1000, 2), round(10 ** ((bin + 1) / 4) / 1000, 2)) AS "first frame", plays
FROM (
  SELECT floor(bucket / 25) AS bin, sum(plays)::BIGINT AS plays
  FROM startup_histogram
  WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  AND ($cdn IS NULL OR coalesce(cdn, 'unknown') = $cdn)
  AND ($isp IS NULL OR coalesce(isp, 'unknown') = $isp)
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
  GROUP BY bin
)
ORDER BY bin
