"""The torch frontend: captures a module, or a whole training step of it, as a serial program.

    capture(model, example_inputs)                                         the forward pass
    capture(model, (x, y), Recipe(loss=criterion, optimizer=AdamW(...)))   a training step
    capture_differentiable(model, call, tensors)                           outputs and gradients

Nothing is computed and no weight is copied: capture runs on fake tensors. Beside the packages of
its parts are `origin`, lines and modules of ops; `added`, ops put into a graph; and `refusals`.
"""

from autopar.frontend.torch.capture.capture import Captured, capture
from autopar.frontend.torch.capture.differentiable import Differentiable, capture_differentiable
from autopar.frontend.torch.step.dynamic import Dynamic
from autopar.frontend.torch.step.recipe import Recipe

__all__ = ["Captured", "Differentiable", "Dynamic", "Recipe", "capture", "capture_differentiable"]
