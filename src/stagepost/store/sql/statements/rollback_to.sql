ROLLBACK TO stagepost
