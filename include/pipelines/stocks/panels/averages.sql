-- Average close over all sessions, of each share with a price in the time range.
SELECT ticker, average_close
FROM average_close
WHERE last_date >= $from::DATE AND last_date < $to
ORDER BY ticker
