"""Finding the app that a command names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stagepost import App, DeclarationError
from stagepost.app.loading import load_app

MODULE = "from stagepost import App\napp = App('shop')\nother = App('other')\nnumber = 17\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")) or name.startswith("loaded_"):
            del sys.modules[name]


def test_an_app_is_found_in_a_module_of_the_working_folder(folder: Path) -> None:
    (folder / "loaded_shop.py").write_text(MODULE)
    found = load_app("loaded_shop:other")
    assert isinstance(found, App)
    assert found.name == "other"
    assert load_app("loaded_shop:other") is found


def test_an_app_is_found_in_a_package_of_another_folder(folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "elsewhere" / "loaded_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "shop.py").write_text(MODULE)
    assert load_app("loaded_package.shop:app", tmp_path / "elsewhere").name == "shop"


@pytest.mark.parametrize("name", ["", "loaded_shop", "loaded_shop:", ":app"])
def test_a_name_without_its_two_parts_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match=r"does not name an app: write module:attribute, such as myapp:app"):
        load_app(name)


@pytest.mark.parametrize(
    ("name", "module"), [("shop.py:app", "shop:app"), ("src/shop.py:app", "src.shop:app"), ("./shop:app", "shop:app")]
)
def test_a_file_in_the_place_of_a_module_is_refused_with_the_module(name: str, module: str) -> None:
    with pytest.raises(DeclarationError, match=f"is a file; write it as a module, such as {module}, and run"):
        load_app(name)


@pytest.mark.parametrize("name", ["loaded_nothing:app", "loaded_nothing.inner:app"])
def test_a_module_that_is_not_there_is_refused_with_the_folder_that_was_searched(folder: Path, name: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        load_app(name)
    assert "no module 'loaded_nothing'" in str(caught.value)
    assert str(folder) in str(caught.value)


def test_an_attribute_that_is_no_app_is_refused_with_the_apps_that_are_there(folder: Path) -> None:
    (folder / "loaded_shop.py").write_text(MODULE)
    with pytest.raises(DeclarationError) as caught:
        load_app("loaded_shop:number")
    assert "is a int, not a stagepost.App" in str(caught.value)
    assert "Apps there: loaded_shop:app, loaded_shop:other" in str(caught.value)
    with pytest.raises(DeclarationError, match="loaded_shop:nothing does not exist"):
        load_app("loaded_shop:nothing")
    (folder / "loaded_empty.py").write_text("")
    with pytest.raises(DeclarationError, match=r"The module has no App\."):
        load_app("loaded_empty:app")
