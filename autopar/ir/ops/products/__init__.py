"""Rules of ops that multiply and add: matrix products, attention, recurrence, decompositions."""
