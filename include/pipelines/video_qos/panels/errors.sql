-- Errors of each minute by class, without warnings and business rules.
SELECT minute, error_class, sum(errors)::BIGINT AS errors
FROM error_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  AND ($cdn IS NULL OR coalesce(cdn, 'unknown') = $cdn)
  AND ($isp IS NULL OR coalesce(isp, 'unknown') = $isp)
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
GROUP BY minute, error_class
ORDER BY minute
