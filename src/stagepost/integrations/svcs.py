"""Scopes made of svcs containers: ``App(scopes=SvcsScopes(registry))``. It needs the extra ``scopes``."""

from __future__ import annotations

from typing import Any

import svcs


class SvcsScopes:
    """Opens a ``svcs.Container`` for each envelope. Implements ``stagepost.Scopes``.

    ``registry`` has the factories, and the values that live as long as the app. Its maker closes it.
    """

    def __init__(self, registry: svcs.Registry) -> None:
        self._registry = registry

    def open(self) -> SvcsScope:
        return SvcsScope(OrderedContainer(self._registry))


class SvcsScope:
    """The container of one envelope. Implements ``stagepost.Scope``."""

    def __init__(self, container: svcs.Container) -> None:
        self._container = container

    def get(self, wanted: Any, /) -> Any:
        """Return the service of a type. Raises ``svcs.exceptions.ServiceNotFoundError``.

        Raises ``TypeError`` for an ``async`` factory.
        """
        return self._container.get(wanted)

    def close(self) -> None:
        """Run the clean-ups in reverse order. svcs logs their errors, and goes on."""
        self._container.close()


class OrderedContainer(svcs.Container):
    """A container that releases each service before the services that it was made of.

    svcs notes the clean-up of a generator before the generator runs, and so before the clean-ups of the services that
    the generator asks for. Those would be released while the generator's own service still uses them.
    """

    def get(self, *wanted: Any) -> Any:
        if len(wanted) != 1:
            return [self.get(each) for each in wanted]
        noted = len(self._on_close)
        service = super().get(*wanted)
        new = self._on_close[noted:]
        self._on_close[noted:] = sorted(new, key=lambda clean_up: clean_up[0].svc_type == wanted[0])
        return service
