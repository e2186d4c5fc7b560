"""What stands for values that code must not read while it is traced."""

from __future__ import annotations

from typing import Any, NoReturn

from torch.utils import _pytree as pytree


class Unreadable:
    """Stands for a value, and refuses to be read, whichever way."""

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raises why it can't be read."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> NoReturn:
        self.refuse()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        del func, types
        leaves = pytree.tree_leaves((args, kwargs))
        next(leaf for leaf in leaves if isinstance(leaf, cls)).refuse()


_OPERATORS = """add sub mul truediv floordiv mod pow matmul and or xor radd rsub rmul rtruediv
rfloordiv rmod rpow rmatmul rand ror rxor neg pos abs invert len iter bool getitem setitem contains
float int index round trunc floor ceil complex hash str format lt le gt ge eq ne iadd isub imul
itruediv"""

for _name in _OPERATORS.split():
    setattr(Unreadable, f"__{_name}__", lambda self, *_: self.refuse())
