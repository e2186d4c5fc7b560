"""Presets: named strategies that pin by the structure of a program."""
