-- Activities of each organisation per date and kind, after all requests.
SELECT
  org_id,
  engagement_date,
  activity_type,
  count(*) AS activities,
  count(DISTINCT contact_id) AS contacts
FROM activities
GROUP BY org_id, engagement_date, activity_type
