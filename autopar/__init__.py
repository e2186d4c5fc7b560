"""autopar compiles a model written for one device into one program per rank, and runs them."""

from __future__ import annotations

__version__ = "0.1.0"
