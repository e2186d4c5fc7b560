"""Imports go one way: parts along the arrows of the design, files of a part in no circle.

    base <- ir <- cost <- {completion, partition, mapping} <- planning <- pipeline <- analysis
    ir <- {frontend, annotate, runtime}, and above all of them what users call

What is imported in functions, and for types only, counts. `autopar/__init__.py` alone sees
everything, and nothing in the package imports it.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "autopar"
COMPILER = {"annotate", "base", "completion", "cost", "frontend", "ir", "mapping", "version"}
MODELS = {"annotate", "base", "compiled", "cost", "frontend", "ir", "mapping", "pipeline"}
MAY_IMPORT = {
    "version": set(),
    "base": set(),
    "ir": {"base"},
    "cost": {"base", "ir"},
    "completion": {"base", "ir", "cost"},
    "partition": {"base", "ir", "cost"},
    "mapping": {"base", "ir", "cost"},
    "frontend": {"base", "ir"},
    "annotate": {"base", "ir"},
    "runtime": {"base", "ir", "version"},
    "calibration": {"base", "cost", "ir", "runtime"},
    "planning": {"annotate", "base", "completion", "cost", "ir", "partition"},
    "pipeline": COMPILER - {"frontend"} | {"partition", "planning", "runtime"},
    "analysis": COMPILER - {"mapping", "version"} | {"pipeline", "planning", "runtime"},
    "compiled": {"analysis", "base", "cost", "ir", "pipeline"},
    "onnx_models": MODELS,
    "modules": MODELS,
    "parallel": COMPILER - {"version"} | {"pipeline", "runtime"},
    "serving": {"base", "compiled", "onnx_models", "runtime"},
    "generation": {"base", "runtime"},
    "elastic": {"base", "compiled", "ir", "runtime", "version"},
    "cli": COMPILER - {"annotate"} | {"analysis", "calibration", "compiled", "pipeline", "runtime"},
    "__main__": {"cli"},
}
FACADE = "__init__"


def imported_modules(source: str, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yields (line, absolute module name) of every import, wherever in the source it stands.

    `from autopar import cost` names the module `autopar.cost` too.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def module_of(path: Path) -> str:
    """Returns the module that a source file is; that of a folder's `__init__` is the folder."""
    words = ("autopar", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def imports_of_files() -> dict[str, set[str]]:
    """Returns for each module of the package which others it imports by name."""
    files = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        package = ("autopar", *path.relative_to(PACKAGE).parts[:-1])
        named = {name for _, name in imported_modules(path.read_text(), package)}
        meant = {name if name in files else name.rpartition(".")[0] for name in named}
        found[module] = meant & files.keys() - {module}
    return found


def part_of(path: Path) -> str:
    """Returns the part that a source file belongs to: its folder, or its name at the top."""
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def forbidden(source: str, path: Path) -> list[str]:
    """Returns the imports of a file that no arrow of the design allows."""
    part = part_of(path)
    if part == FACADE:
        return []
    package = ("autopar", *path.relative_to(PACKAGE).parts[:-1])
    found = []
    for line, module in imported_modules(source, package):
        words = module.split(".")
        if words[0] != "autopar":
            continue
        if len(words) < 2 or words[1] not in MAY_IMPORT[part] | {part}:
            found.append(f"{path.relative_to(PACKAGE.parent)}:{line}: {part} imports {module}")
    return found


def test_parts_import_along_the_arrows_only() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert {part_of(path) for path in files} - {FACADE} == MAY_IMPORT.keys()
    assert [problem for path in files for problem in forbidden(path.read_text(), path)] == []


def test_arrows_lead_one_way() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()


def test_every_arrow_is_used() -> None:
    used: dict[str, set[str]] = {part: set() for part in MAY_IMPORT}
    for importer, imported in imports_of_files().items():
        part = importer.split(".")[1] if "." in importer else FACADE
        if part != FACADE:
            used[part] |= {name.split(".")[1] for name in imported} - {part}
    assert used == MAY_IMPORT


def test_no_file_leads_back_to_itself() -> None:
    TopologicalSorter(imports_of_files()).prepare()


@pytest.mark.parametrize(
    "source",
    [
        "from autopar.partition import x",
        "import autopar.partition.boxes",
        "from autopar import partition",
        "from ..partition import boxes",
        "def f():\n    from autopar import pipeline",
        "import autopar",
    ],
)
def test_the_walk_sees_every_form_of_import(source: str) -> None:
    assert len(forbidden(source, PACKAGE / "mapping" / "prove.py")) == 1


def test_the_walk_admits_the_arrows() -> None:
    source = "import torch\nfrom autopar.base import units\nfrom autopar.ir import mesh\n"
    assert forbidden(source + "from . import groups", PACKAGE / "mapping" / "prove.py") == []


def loaded_after(code: str) -> set[str]:
    """Returns the modules that a fresh interpreter has loaded after running this code."""
    show = "\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    run = [sys.executable, "-c", code + show]
    result = subprocess.run(run, capture_output=True, text=True, timeout=600, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_runtime_loads_nothing_of_the_compiler() -> None:
    loaded = loaded_after("import autopar.runtime.__main__")
    ours = {name.split(".")[1] for name in loaded if name.startswith("autopar.")}
    assert ours == {"base", "ir", "runtime", "version"}
    assert not loaded & {"onnx", "onnxruntime", "click", "yaml"}


@pytest.mark.parametrize("words", [[], ["compile"], ["inspect"], ["run"], ["verify"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    call = f"main({[*words, '--help']}, prog_name='autopar', standalone_mode=False)"
    loaded = loaded_after(f"from autopar.cli import main\n{call}")
    assert not loaded & {"torch", "onnx", "onnxruntime", "numpy", "google.protobuf", "yaml"}
