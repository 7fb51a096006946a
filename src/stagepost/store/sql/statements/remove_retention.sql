-- As small as the apps have stages.
DELETE FROM stagepost_retention WHERE app = :app
