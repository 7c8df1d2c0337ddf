-- By the average purchase in the country over the last seven dates. Countries without recent purchases have no offer: the feed
-- then deletes theirs.
SELECT
  country,
  CASE
    WHEN sum(bookings) >= 15 * sum(purchases) THEN 'big_spenders'
    WHEN sum(bookings) >= 5 * sum(purchases) THEN 'regulars'
    ELSE 'starters'
  END AS segment,
  CASE
    WHEN sum(bookings) >= 15 * sum(purchases) THEN 'treasure_vault'
    WHEN sum(bookings) >= 5 * sum(purchases) THEN 'gem_bag'
    ELSE 'starter_pack'
  END AS bundle,
  CAST(sum(bookings) / sum(purchases) AS DECIMAL(12, 2)) AS mean_amount,
  sum(purchases) AS purchases
FROM bookings_per_country
WHERE event_date > (SELECT max(event_date) FROM bookings_per_country) - INTERVAL 7 DAYS
GROUP BY country
ORDER BY country
