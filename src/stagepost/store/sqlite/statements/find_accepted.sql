SELECT digest FROM stagepost_accepted WHERE scope = ? AND key = ?
