-- Weeks start on Monday. A contact with two or more activities in a week is engaged.
WITH per_contact AS (
  SELECT
    org_id,
    CAST(date_trunc('WEEK', engagement_date) AS date) AS week,
    contact_id,
    count(*) AS activities
  FROM activities
  GROUP BY 1, 2, 3
)
SELECT
  org_id,
  week,
  count(*) AS contacts,
  count_if(activities >= 2) AS engaged_contacts,
  sum(activities) AS activities
FROM per_contact
GROUP BY org_id, week
