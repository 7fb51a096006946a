"""What a user declares: the app, its endpoints and stages, and the settings they run under."""

from stagepost.app.app import App

__all__ = ["App"]
