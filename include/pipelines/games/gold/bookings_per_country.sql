-- One row per date (UTC) and country with purchases: total amount and number. The country comes from the envelope of the same
-- event, or is '??'.
-- Joins only the envelopes of purchases, which are few.
SELECT
  purchase.event_date,
  coalesce(events.country, '??') AS country,
  CAST(sum(purchase.amount) AS DECIMAL(18, 2)) AS bookings,
  count(*) AS purchases
FROM purchase
LEFT JOIN events
  ON events.event_date = purchase.event_date AND events.event_id = purchase.event_id AND events.event_name = 'purchase'
GROUP BY purchase.event_date, coalesce(events.country, '??')
