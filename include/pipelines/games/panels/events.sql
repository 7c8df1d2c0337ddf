-- Events by date and type.
SELECT event_date AS date, event_name, sum(events) AS events
FROM events_per_hour
WHERE event_date >= $from::DATE AND event_date < $to
GROUP BY date, event_name
ORDER BY date
