"""Transactional, staged messaging: every stage consumed its message, changed its database and produced its messages,
or did none of that."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stagepost.public import *  # noqa: F403 - the names of ``__all__`` there
else:

    def __getattr__(name: str) -> Any:
        """Import the public names. Spark's Python processes need none of them, and start faster without."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        public = import_module("stagepost.public")
        globals().update({each: getattr(public, each) for each in public.__all__}, __all__=public.__all__)
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return [*__getattr__("__all__"), "__version__"]
