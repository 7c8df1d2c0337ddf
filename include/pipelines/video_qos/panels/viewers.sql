-- Views of each minute that meet it.
SELECT minute, concurrent_viewers
FROM noc
WHERE minute >= $from AND minute < $to
ORDER BY minute
