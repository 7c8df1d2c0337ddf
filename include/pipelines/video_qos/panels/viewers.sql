-- Views that overlap each minute.
SELECT minute, concurrent_viewers
FROM noc
WHERE minute >= $from AND minute < $to
ORDER BY minute
