-- One row per minute (UTC), platform, country and version: number of events.
SELECT
  event_date,
  date_trunc('MINUTE', event_time) AS minute,
  platform, country, app_version,
  count(*) AS events
FROM events
GROUP BY event_date, date_trunc('MINUTE', event_time), platform, country, app_version
