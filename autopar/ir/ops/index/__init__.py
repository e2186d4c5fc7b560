"""Rules of ops that read or write at positions which operands hold."""
