RELEASE stagepost
