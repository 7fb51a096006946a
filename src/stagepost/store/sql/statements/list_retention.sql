-- As small as the apps have stages. Index: the primary key.
SELECT scope, app, hours FROM stagepost_retention ORDER BY scope, app
