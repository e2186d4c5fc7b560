"""Rules of losses and their gradients."""
