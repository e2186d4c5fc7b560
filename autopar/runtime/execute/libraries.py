"""Imports the modules that register the ops of other libraries with torch.

A build names such ops and not where they come from: what a file says is never executed.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from autopar.base.errors import InvalidInputError


def import_modules(names: Sequence[str]) -> None:
    """Imports modules by name.

    Raises:
        InvalidInputError: If one can't be imported.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever the module does when it is imported
            raise InvalidInputError(
                f"--modules {name}: {type(error).__name__}: {error}; a module is found as Python"
                " finds it, in installed packages and on PYTHONPATH"
            ) from error
