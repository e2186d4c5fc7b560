"""The torch frontend: captures a module, or a whole training step of it, as a serial program.

    capture(model, example_inputs)                                         the forward pass
    capture(model, (x, y), Recipe(loss=criterion, optimizer=AdamW(...)))   a training step

Nothing is computed and no weight is copied: capture runs on fake tensors.
"""

from autopar.frontend.torch.capture import Captured, Recipe, capture

__all__ = ["Captured", "Recipe", "capture"]
