"""The version of autopar."""

__version__ = "0.1.0"
