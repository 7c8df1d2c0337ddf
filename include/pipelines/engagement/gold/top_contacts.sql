-- The busiest contacts of each organisation. A contact without a name is shown by its id.
WITH ranked AS (
  SELECT
    org_id,
    contact_id,
    count(*) AS activities,
    min(engagement_date) AS first_date,
    max(engagement_date) AS last_date,
    row_number() OVER (PARTITION BY org_id ORDER BY count(*) DESC, contact_id) AS place
  FROM activities
  GROUP BY org_id, contact_id
)
SELECT
  ranked.org_id,
  ranked.place,
  ranked.contact_id,
  coalesce(names.name, ranked.contact_id) AS contact_name,
  ranked.activities,
  ranked.first_date,
  ranked.last_date
FROM ranked
LEFT JOIN names ON names.org_id = ranked.org_id AND names.id = ranked.contact_id
WHERE ranked.place <= 20
