-- Bitrate, weighted by what was played at it.
SELECT minute, bitrate_kbps
FROM noc
WHERE minute >= $from AND minute < $to
ORDER BY minute
