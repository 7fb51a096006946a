"""Finding the app that a command names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from stagepost.app.app import App
from stagepost.flow.errors import DeclarationError


def load_app(name: str, folder: Path | None = None) -> App:
    """The ``App`` of ``module:attribute``, looked for in ``folder``, else in the working folder.

    Raises ``DeclarationError``.

    What the module itself raises when it is imported is passed on: it is the user's own, with the user's own traceback.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise DeclarationError(f"{name!r} does not name an app: write module:attribute, such as myapp:app")
    if module_name.endswith(".py") or "/" in module_name:
        raise DeclarationError(
            f"{module_name!r} is a file; write it as a module, such as {Path(module_name).stem}:{attribute}, and run "
            "the command in the module's folder"
        )
    if module_name.startswith("."):
        raise DeclarationError(
            f"{module_name!r} is relative; write the module's whole name, such as {module_name.lstrip('.')}:{attribute}"
        )
    folder = folder or Path.cwd()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise DeclarationError(
                f"no module {error.name!r} in {folder} or among the installed packages. Run the command in the folder "
                f"that holds it, or check the name in {name!r}."
            ) from error
        raise
    found = getattr(module, attribute, None)
    if not isinstance(found, App):
        apps = ", ".join(f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, App))
        what = "does not exist" if found is None else f"is a {type(found).__name__}, not a stagepost.App"
        raise DeclarationError(f"{name} {what}. {'Apps there: ' + apps if apps else 'The module has no App.'}")
    return found
