"""Reads all files of a build and compares them with what was written."""

from __future__ import annotations

from autopar.base.errors import InvalidInputError
from autopar.ir.builds.files import Build
from autopar.ir.builds.manifest import FileEntry
from autopar.runtime.weights.weights import WeightFile


def check_files(build: Build) -> None:
    """Compares all files of a build with their digests; of weights, tensor by tensor.

    Raises:
        InvalidInputError: If some are damaged. Names all.
    """
    damages = [damage for file in build.manifest.files if (damage := _damage(build, file))]
    if damages:
        raise InvalidInputError("\n".join(damages))


def check_weights(build: Build) -> None:
    """Compares the weights of a build with their digests.

    Raises:
        InvalidInputError: If some are damaged. Names all tensors.
    """
    if build.weights_path is None:
        return
    entry = next(file for file in build.manifest.files if file.path == build.weights_path.name)
    if damage := _damage(build, entry):
        raise InvalidInputError(damage)


def _damage(build: Build, file: FileEntry) -> str:
    """Returns how a file is damaged; an empty text if it isn't."""
    of_weights = build.weights_path == build.path / file.path
    try:
        if of_weights and build.manifest.weights is not None:
            _read_all(build)
        else:
            build.check_file(file)
    except InvalidInputError as error:
        return str(error)
    return ""


def _read_all(build: Build) -> None:
    with WeightFile(build=build) as file:
        for name in file.entries:
            file.check(name)
