-- Bitrate, weighted by played time.
SELECT minute, bitrate_kbps
FROM noc
WHERE minute >= $from AND minute < $to
ORDER BY minute
