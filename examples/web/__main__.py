"""Make the tables and serve a shop: ``python -m examples.web fastapi 8000``, or ``django``.

Its worker is ``stagepost worker examples.web.fastapi_shop:shop``, or ``examples.web.django_shop:shop``. Both find the
database by STAGEPOST_DATABASE.
"""

from __future__ import annotations

import sys
from importlib import import_module

from examples.web.serving import run


def main(framework: str, port: str) -> None:
    module = import_module(f"examples.web.{framework}_shop")
    module.make_tables()
    run(module.web, int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
