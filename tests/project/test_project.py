"""The project's own files: what is packaged, and whether the documents tell the truth."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import setuptools

import autopar

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/design.md")
BUILT = {"__pycache__", ".mypy_cache"}


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py tells setuptools."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", told.update)
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    return told


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_version_is_that_of_the_package_and_of_the_changelog(metadata: dict[str, Any]) -> None:
    assert metadata["version"] == autopar.__version__
    assert f"## {autopar.__version__}" in text_of("CHANGELOG.md")


def test_metadata_stands_in_setup_py_alone() -> None:
    settings = tomllib.loads(text_of("pyproject.toml"))
    assert settings.keys() == {"build-system", "tool"}


def test_tools_check_for_the_oldest_python_that_is_admitted(metadata: dict[str, Any]) -> None:
    settings = tomllib.loads(text_of("pyproject.toml"))
    oldest = metadata["python_requires"].removeprefix(">=")
    assert settings["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"


def test_every_file_of_the_package_is_in_the_wheel(metadata: dict[str, Any]) -> None:
    """A folder without `__init__.py`, or a data file in no pattern, works in a checkout only."""
    package = ROOT / "autopar"
    packed = set()
    for name in metadata["packages"]:
        packed.update((ROOT / name.replace(".", "/")).glob("*.py"))
    for pattern in metadata["package_data"]["autopar"]:
        packed.update(package.glob(pattern))
    files = {path for path in package.rglob("*") if path.is_file() and not BUILT & set(path.parts)}
    assert sorted(str(path) for path in files - packed) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    folder = (ROOT / document).parent
    prose = re.sub(r"^```.*?^```", "", text_of(document), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)", prose)
    local = [link for link in links if not re.match(r"\w+:", link)]
    assert [link for link in local if not (folder / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_exist(document: str) -> None:
    """Every path in code quotes that starts with one of the project's folders exists."""
    tops = "autopar|tests|docs|examples|benchmarks|scripts"
    named = set(re.findall(rf"`((?:{tops})/[\w./-]*)`", text_of(document)))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^ *(?:\$ )?|`)make ([a-z-]+)", text_of(document), re.MULTILINE))
    assert named <= targets
