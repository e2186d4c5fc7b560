"""Rules of ops that go along dimensions and reduce, scale or sort them."""
