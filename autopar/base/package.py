"""Where autopar's own source files are."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
"""The folder of the package."""
