"""The command line: a module per group of commands, and how a command ends."""

from autopar.cli.commands import main

__all__ = ["main"]
