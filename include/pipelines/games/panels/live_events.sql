-- Within a minute, including copies that devices resend.
SELECT window_start AS hour, event_name, sum(events)::BIGINT AS events
FROM events_per_hour_live
WHERE window_date >= $from::DATE AND window_end > $from AND window_start < $to
GROUP BY ALL
ORDER BY hour
