"""The declarations of a user: the app, its endpoints and its stages."""

from stagepost.app.app import App

__all__ = ["App"]
