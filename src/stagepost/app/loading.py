"""Load the app that a command names."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from stagepost.app.app import App
from stagepost.flow.errors import DeclarationError, StagepostError

OURS = Path(__file__).parent.parent


def load_app(name: str, folder: Path | None = None) -> App:
    """Import the ``App`` of ``module:attribute`` from ``folder``, or by default from the working folder.

    ``module:make_app()`` names a function without parameters, and returns the app that it makes.
    Raises ``DeclarationError``. If the import or the call fails, the error has the user's part of the traceback.
    """
    module, attribute = _load_module(name, folder, "an app")
    factory = attribute.removesuffix("()")
    found = getattr(module, factory, None)
    if attribute != factory and callable(found):
        found = _called(name, found)
    if not isinstance(found, App):
        apps = ", ".join(f"{module.__name__}:{key}" for key, value in vars(module).items() if isinstance(value, App))
        what = "does not exist" if found is None else f"is a {type(found).__name__}, not a stagepost.App"
        if callable(found) and attribute == factory:
            what += f": write {name}() if it makes an app"
        raise DeclarationError(f"{name} {what}. {'Apps there: ' + apps if apps else 'The module has no App.'}")
    return found


def load_attribute(name: str, folder: Path | None = None) -> Any:
    """Import ``module:attribute``, as ``load_app`` does. Raises ``DeclarationError``."""
    module, attribute = _load_module(name, folder, "a function")
    if not hasattr(module, attribute):
        raise DeclarationError(f"{name} does not exist: the module {module.__name__} has no {attribute!r}")
    return getattr(module, attribute)


def _load_module(name: str, folder: Path | None, what: str) -> tuple[ModuleType, str]:
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise DeclarationError(f"{name!r} does not name {what}: write module:attribute, such as myapp:app")
    if module_name.endswith(".py") or "/" in module_name:
        raise DeclarationError(
            f"{module_name!r} is a file; write it as a module, such as "
            f"{'.'.join(Path(module_name).with_suffix('').parts).lstrip('/.')}:{attribute}, and run the command in the "
            "folder that it is found from"
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
        raise _failed(f"importing {module_name}", error) from error
    except (Exception, SystemExit) as error:
        raise _failed(f"importing {module_name}", error) from error
    return module, attribute


def _called(name: str, factory: Callable[[], object]) -> object:
    try:
        return factory()
    except Exception as error:
        raise _failed(f"calling {name}", error) from error


def _failed(action: str, error: Exception | SystemExit) -> DeclarationError:
    if isinstance(error, StagepostError):
        own = [each for each in traceback.extract_tb(error.__traceback__) if not _is_machinery(each.filename)]
        return DeclarationError(f"{error} (at {own[-1].filename}:{own[-1].lineno})" if own else str(error))
    trace = error.__traceback__
    while trace is not None and _is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    trace_text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return DeclarationError(f"{action} failed:\n{trace_text}")


def _is_machinery(file: str) -> bool:
    return file.startswith("<frozen ") or "/importlib/" in file or Path(file).is_relative_to(OURS)
