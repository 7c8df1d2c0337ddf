-- Errors of each minute by class, without warnings and business rules.
SELECT minute, error_class, sum(errors)::BIGINT AS errors
FROM error_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY minute, error_class
ORDER BY minute
