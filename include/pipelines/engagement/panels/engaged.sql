-- Contacts of each week, and those with two or more activities in it.
SELECT week, sum(contacts)::BIGINT AS contacts, sum(engaged_contacts)::BIGINT AS engaged
FROM engaged_contacts_per_week
WHERE week >= $from::DATE AND week < $to
  AND ($organisation IS NULL OR org_id = $organisation)
GROUP BY week
ORDER BY week
