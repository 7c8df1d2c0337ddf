-- Events of a minute by platform and country; the sample count is the number of events of all.
WITH counted AS (
  SELECT minute, coalesce(platform, 'unknown') AS platform, coalesce(country, 'unknown') AS country, sum(events) AS events
  FROM events_minute
  WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  GROUP BY ALL
)
SELECT minute, platform, country, events AS value, sum(events) OVER (PARTITION BY minute) AS samples
FROM counted
