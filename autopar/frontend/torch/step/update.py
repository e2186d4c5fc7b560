"""Captures what happens between gradients and new parameters: clipping, and the optimizer's step.

The user's own optimizer is run, on fake tensors and with its state, learning rates and gradients
as inputs. So every optimizer of torch.optim works that is a function of those.
"""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch._export.utils import _compiling_state_context
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from autopar.base.errors import InvalidInputError
from autopar.frontend.lower.spelling import TORCH_HALVES
from autopar.frontend.torch.refusals import DEPENDENT
from autopar.frontend.torch.step.fused import STEPS, run_functional, traceable_steps
from autopar.frontend.torch.step.scaling import Scaling
from autopar.frontend.torch.step.state import StateTensor, cloned
from autopar.ir.program import Arg

Item = TypeVar("Item")

RATE_DTYPE = torch.float64
"""Of learning rates: that of Python's numbers, which torch rounds only where it computes."""

COUNT = "step"
"""The name of an optimizer's state that counts its steps."""

_OPTIONS: Mapping[str, Any] = {"capturable": True, "foreach": False, "differentiable": False}
"""Options that say how, not what, to compute: as one function of tensors, op by op."""


@dataclass(frozen=True)
class UpdateRequest:
    """What is to be captured.

    Attributes:
        optimizer: The user's optimizer. It isn't changed.
        parameters: The user's parameters that have gradients, by name.
        states: The optimizer's state.
        types: What the parameters are stored as, by name.
        clip_norm: The largest norm of all gradients together; None for no clipping.
        scaling: How the loss is scaled; its state is at the end of `states`.
    """

    optimizer: Optimizer
    parameters: Mapping[str, nn.Parameter]
    states: Sequence[StateTensor]
    types: Mapping[str, torch.dtype]
    clip_norm: float | None = None
    scaling: Scaling | None = None


@dataclass(frozen=True)
class Update:
    """A captured update.

    Attributes:
        graph: The graph, without side effects.
        parameters, gradients, states, rates: Its placeholders, in the order of the request.
        new_parameters, new_states: What it returns, in the order of the request.
        norm: The norm of all gradients before clipping; None without clipping.
    """

    graph: fx.Graph
    parameters: list[fx.Node]
    gradients: list[fx.Node]
    states: list[fx.Node]
    rates: list[fx.Node]
    new_parameters: list[fx.Node]
    new_states: list[fx.Node]
    norm: fx.Node | None


def capture_update(request: UpdateRequest, mode: FakeTensorMode) -> Update:
    """Captures an update.

    Raises:
        InvalidInputError: If the optimizer isn't a function of parameters, gradients and state.
    """
    count, states = len(request.parameters), len(request.states)
    groups = len(request.optimizer.param_groups)

    def update(*tensors: Tensor) -> list[Tensor]:
        return _run(request, *_cut(tensors, (count, count, states, groups)))

    with mode:
        parameters = [
            torch.empty(parameter.shape, dtype=request.types[name])
            for name, parameter in request.parameters.items()
        ]
        gradients = [torch.empty_like(p) for p in parameters]
        rates = [torch.empty((), dtype=RATE_DTYPE) for _ in range(groups)]
    fake = [*parameters, *gradients, *(s.fake for s in request.states), *rates]
    explained = _explained(type(request.optimizer))
    with mode, _compiling_state_context(), torch.no_grad(), traceable_steps(), explained:
        module = make_fx(dispatch_functionalize(update))(*fake)
    return _described(module.graph, request, groups)


def _run(
    request: UpdateRequest,
    parameters: list[Tensor],
    gradients: list[Tensor],
    states: list[Tensor],
    rates: list[Tensor],
) -> list[Tensor]:
    old, count = [*parameters, *states], len(parameters)
    finite: Tensor | None = None
    scales: list[Tensor] = []
    if request.scaling is not None:
        states, scales = states[:-2], states[-2:]
        finite = torch.stack([torch.isfinite(each).all() for each in gradients]).all()
    norms: list[Tensor] = []
    if request.clip_norm is not None:
        norms, gradients = _clipped(gradients, request.clip_norm)
    # The optimizer writes; what is kept where gradients aren't finite is not written to.
    written = old if finite is None else [tensor.clone() for tensor in old[: count + len(states)]]
    _step(request, written[:count], gradients, written[count:], rates)
    if request.scaling is None or finite is None:
        return [*norms, *written]
    kept = [torch.where(finite, new, was) for new, was in zip(written, old, strict=False)]
    return [*norms, *kept, *request.scaling.updated(finite, scales[0], scales[1])]


def _clipped(gradients: Sequence[Tensor], largest: float) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the norm of all gradients, and the gradients scaled down to the largest one."""
    norm = torch.nn.utils.get_total_norm(gradients, foreach=False)
    scale = torch.clamp(largest / (norm + 1e-6), max=1.0)
    return [norm], [gradient * scale.to(gradient.dtype) for gradient in gradients]


def _step(
    request: UpdateRequest,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[Tensor],
    rates: Sequence[Tensor],
) -> None:
    """Lets the optimizer write new contents to parameters and states."""
    theirs = dict(zip(map(id, request.parameters.values()), parameters, strict=True))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    groups = []
    for group, rate in zip(request.optimizer.param_groups, rates, strict=True):
        own = [theirs[id(p)] for p in group["params"] if id(p) in theirs]
        options = _options(request.optimizer, group, own)
        groups.append({**group, **options, "params": own, "lr": rate})
    optimizer = cloned(request.optimizer, groups)
    by_name = dict(zip(request.parameters, parameters, strict=True))
    fused = {id(p) for group in groups if group.get("fused") for p in group["params"]}
    counts: list[tuple[Tensor, Tensor]] = []
    for each, state in zip(request.states, states, strict=False):
        parameter = by_name[each.parameter]
        if each.name == COUNT and state.ndim == 0 and id(parameter) not in fused:
            # Torch computes with counts as Python's numbers; fused steps read them as they are.
            counts.append((state, state.to(RATE_DTYPE)))
            optimizer.state[parameter][each.name] = counts[-1][1]
        else:
            optimizer.state[parameter][each.name] = state
    with _TensorScalars():
        optimizer.step()
    _check_state(optimizer, request, by_name)
    for state, counted in counts:
        state.copy_(counted.to(state.dtype))


def _options(
    optimizer: Optimizer, group: Mapping[str, Any], parameters: Sequence[Tensor]
) -> dict[str, Any]:
    """Returns how a group of parameters is updated, where its user leaves that open.

    One kernel per parameter is fastest, on every device. Torch takes it only if told so, because
    it was new; `fused=False` is left as it is. On CPUs its kernel of SGD leaves parameters of 16
    bits as they were (torch 2.13), so that isn't taken even if its user says so.
    """
    options = {key: value for key, value in _OPTIONS.items() if key in group}
    if "fused" not in group:
        return options
    if isinstance(optimizer, torch.optim.SGD) and any(p.dtype in TORCH_HALVES for p in parameters):
        return {**options, "fused": False}
    open_ = group["fused"] is None and not group.get("differentiable")
    if group["fused"] or (open_ and all(p.is_floating_point() for p in parameters)):
        options.update({key: False for key in ("capturable",) if key in group}, fused=True)
    return options


def plain_options(group: Mapping[str, Any]) -> tuple[tuple[str, Arg], ...]:
    """Returns what a group of parameters is updated with besides its learning rate, by name."""
    rest = {name: value for name, value in group.items() if name not in _NOT_OPTIONS}
    found = {name: _plain(value) for name, value in rest.items()}
    return tuple((name, value) for name, value in found.items() if value is not _NOT_PLAIN)


_NOT_OPTIONS = ("params", "param_names", "lr", "initial_lr")
"""Entries of a group that say what is updated, or change from step to step."""

_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, (tuple, list)):
        items = tuple(map(_plain, value))
        return _NOT_PLAIN if _NOT_PLAIN in items else items
    known = value is None or isinstance(value, (bool, int, float, str))
    return value if known else _NOT_PLAIN


def _check_state(
    optimizer: Optimizer, request: UpdateRequest, parameters: Mapping[str, Tensor]
) -> None:
    known = {(each.parameter, each.name) for each in request.states}
    for name, parameter in parameters.items():
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor) and (name, key) not in known:
                raise InvalidInputError(
                    f"{type(optimizer).__name__} can't be compiled: it makes its state {key!r} in"
                    " its first step, which is unlike the later ones; take some steps before"
                )


def _described(graph: fx.Graph, request: UpdateRequest, groups: int) -> Update:
    count, states = len(request.parameters), len(request.states)
    _drop_copies(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (results,) = graph.output_node().args
    assert isinstance(results, (list, tuple))
    outputs = [node for node in results if isinstance(node, fx.Node)]
    norms = int(request.clip_norm is not None)
    norm, new_parameters, new_states = _cut(outputs, (norms, count, states))
    parameters, gradients, old, rates = _cut(placeholders, (count, count, states, groups))
    return Update(
        graph,
        parameters,
        gradients,
        old,
        rates,
        new_parameters,
        new_states,
        norm[0] if norm else None,
    )


def _drop_copies(graph: fx.Graph) -> None:
    """Takes what is copied over all of a tensor for its new content."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.copy.default:
            old, new = node.args
            if all(a.meta["val"].dtype == node.meta["val"].dtype for a in (old, new)) and (
                new.meta["val"].shape == node.meta["val"].shape
            ):
                node.replace_all_uses_with(new)
                graph.erase_node(node)


def _cut(items: Sequence[Item], lengths: Sequence[int]) -> list[list[Item]]:
    """Returns consecutive parts of these lengths."""
    fresh = iter(items)
    return [list(islice(fresh, length)) for length in lengths]


class _TensorScalars(TorchFunctionMode):
    """Lets a learning rate that is a tensor stand where torch wants a number.

    `p.add_(x, alpha=-lr)` and `p.addcdiv_(x, y, value=-lr)` read the number out of a tensor, which
    a static program can't; the product is the same.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in STEPS:
            return run_functional(name, args, kwargs)
        factor = kwargs.get("alpha" if name in _SUMS else "value")
        if not isinstance(factor, Tensor) or name not in (*_SUMS, *_PRODUCTS):
            return func(*args, **kwargs)
        if name in _SUMS:
            return _SUMS[name](args[0], args[1] * factor)
        term = args[1] * args[2] if "mul" in name else args[1] / args[2]
        return _PRODUCTS[name](args[0], term * factor)


_SUMS: Mapping[str, Any] = {
    "add": torch.add,
    "add_": Tensor.add_,
    "sub": torch.sub,
    "sub_": Tensor.sub_,
}
_PRODUCTS: Mapping[str, Any] = {
    "addcmul": torch.add,
    "addcmul_": Tensor.add_,
    "addcdiv": torch.add,
    "addcdiv_": Tensor.add_,
}


@contextlib.contextmanager
def _explained(optimizer: type[Optimizer]) -> Iterator[None]:
    """Turns what tracing raises into an error that names the optimizer's line."""
    name, hint = optimizer.__name__, "use one that only computes with tensors, as AdamW"
    try:
        yield
    except InvalidInputError:
        raise
    except DEPENDENT as error:
        raise InvalidInputError(
            f"{name} can't be compiled: what its step does{_line_of(optimizer, error)} depends on"
            f" the values of a tensor, so it has no static program; {hint}"
        ) from error
    except Exception as error:
        raise InvalidInputError(
            f"{name} can't be compiled: its step{_line_of(optimizer, error)} is no function of"
            f" parameters, gradients and state: {type(error).__name__}: {error}; {hint}"
        ) from error


def _line_of(optimizer: type[Optimizer], error: BaseException) -> str:
    """Returns the line of the optimizer's file from which an error comes."""
    file = inspect.unwrap(optimizer.step).__code__.co_filename
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f" at {file}:{lines[-1]}" if lines else ""
