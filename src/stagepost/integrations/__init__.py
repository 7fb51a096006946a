"""Other packages that an app may use with Stagepost. Each module is imported only where it is asked for."""
