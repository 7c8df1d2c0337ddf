-- One row per date, product and currency: total amount and number of sales.
SELECT
  event_date,
  product_id,
  currency,
  CAST(sum(amount) AS DECIMAL(18, 2)) AS revenue,
  count(*) AS sales
FROM sales
GROUP BY event_date, product_id, currency
