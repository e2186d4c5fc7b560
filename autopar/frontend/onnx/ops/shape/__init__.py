"""Operators that make, move, choose or hold elements."""
