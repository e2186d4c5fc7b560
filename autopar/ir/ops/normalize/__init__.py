"""Rules of normalizations: of layers, of groups of channels, of batches."""
