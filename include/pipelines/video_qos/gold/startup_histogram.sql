-- Bucket b contains times from 10^(b/100) to 10^((b+1)/100) ms.
SELECT CAST(coalesce(intended_at, played_at) AS DATE) AS event_date,
  date_trunc('MINUTE', coalesce(intended_at, played_at)) AS minute, cdn, isp, country, region, device,
  CAST(floor(100 * log10(greatest(startup_ms, 0.1D))) AS INT) AS bucket,
  count(*) AS plays
FROM views
WHERE startup_ms IS NOT NULL
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
