"""The project's own files: what is packaged, and whether the documents tell the truth."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import setuptools

import autopar

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/design.md")
CODE = ("autopar", "benchmarks", "examples", "tests")
FILE = re.compile(r"`([\w/]+\.py)`")
BUILT = {"__pycache__", ".mypy_cache"}
KNOW_OPS = ("ir/ops/", "ir/emitted.py", "frontend/")
"""Where in the package ops may be called by their names."""

OWN_NAMES = ("autopar.activations", "autopar.pipeline_stage")
"""Names in our namespace that aren't ops': what a graph carries notes under."""


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


def test_files_that_documents_name_exist() -> None:
    """Also by the end of a path alone, as `ops/view.py`; what the changelog names may be gone."""
    files = [f"/{path.relative_to(ROOT)}" for top in CODE for path in (ROOT / top).rglob("*.py")]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    found = {name for page in pages for name in FILE.findall(page.read_text(encoding="utf-8"))}
    assert [name for name in sorted(found) if not any(f.endswith(f"/{name}") for f in files)] == []


def test_files_that_code_names_exist() -> None:
    sources = [path for top in CODE for path in (ROOT / top).rglob("*.py")]
    named = re.compile(r"\b(?:autopar|tests|benchmarks)/[\w/]+\.py\b")
    found = {name for path in sources for name in named.findall(path.read_text(encoding="utf-8"))}
    assert [name for name in sorted(found) if not (ROOT / name).exists()] == []


def test_the_readme_has_all_folders_of_the_package() -> None:
    """In its tree, on a line of its own or within that of the folder around it."""
    tree = text_of("README.md").split("## Where things are")[1].split("## ")[0]
    named = set(re.findall(r"\b(\w+)/", tree))
    package = ROOT / "autopar"
    folders = {path.parent.name for path in package.rglob("__init__.py")} - {"autopar"}
    assert sorted(folders - named) == []
    paths = [
        ROOT / "docs",
        *(path for top in CODE for path in (ROOT / top, *(ROOT / top).rglob("*"))),
    ]
    assert sorted(named - {path.name for path in paths if path.is_dir()}) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^ *(?:\$ )?|`)make ([a-z-]+)", text_of(document), re.MULTILINE))
    assert named <= targets


def op_names(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of the strings in a file, other than docstrings, that name ops.

    Our own ops are in the namespace of our modules, and prefixes of kinds end with a dot.
    """
    tree = ast.parse(source)
    modules = {path.stem for path in (ROOT / "autopar").iterdir()}
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            text = node.value
            aten = re.match(r"(aten|prims)\.\w", text)
            own = re.fullmatch(r"autopar\.(\w+)(\.default)?", text)
            if aten or (own and own[1] not in modules and text not in OWN_NAMES):
                yield node.lineno, text
        if isinstance(node, ast.JoinedStr):
            parts = [each for each in node.values if isinstance(each, ast.Constant)]
            yield from ((node.lineno, "aten.") for each in parts if each.value == "aten.")


def test_what_names_an_op_is_found() -> None:
    source = """
KINDS = ("aten.mm.default", "aten._fused_", "autopar.window", "autopar.shard.default")
MADE = f"aten.{KINDS}_like.default"
OTHERS = ("aten.", "autopar.seeded.", "autopar.runtime", "autopar.ir.mesh", "comm.all_reduce")
def called():
    "A docstring: autopar.window and aten.mm.default."
"""
    found = [(2, "aten._fused_"), (2, "aten.mm.default"), (2, "autopar.shard.default")]
    assert sorted(op_names(source)) == [*found, (2, "autopar.window"), (3, "aten.")]


def test_ops_are_named_beside_their_rules_only() -> None:
    package = ROOT / "autopar"
    found = [
        f"{path.relative_to(package)}:{line}: {text}"
        for path in sorted(package.rglob("*.py"))
        if not str(path.relative_to(package).as_posix()).startswith(KNOW_OPS)
        for line, text in op_names(path.read_text(encoding="utf-8"))
    ]
    assert found == []
