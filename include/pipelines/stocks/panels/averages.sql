-- Average close of each share with a price in the span, over all of its sessions.
SELECT ticker, average_close
FROM average_close
WHERE last_date >= $from::DATE AND last_date < $to
ORDER BY ticker
