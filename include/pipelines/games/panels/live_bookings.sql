-- Within a minute, including copies that devices resend.
SELECT window_start AS hour, amount_sum AS bookings, device_id_distinct AS payers
FROM bookings_per_hour_live
WHERE window_date >= $from::DATE AND window_end > $from AND window_start < $to
ORDER BY hour
