"""Small programs to complete, written with one call per op."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autopar.base.errors import Loc
from autopar.ir.program import Arg, Function, Op, Port, Program, Ref, Signature, Value


class Network:
    """Writes a serial program. Methods take and return names of values."""

    def __init__(self, name: str = "net") -> None:
        self.name = name
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.inputs: list[str] = []

    def input(self, name: str, *shape: int, role: str = "input", dtype: str = "f32") -> str:
        self.values[name] = Value(name, dtype, shape, role)
        self.inputs.append(name)
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.input(name, *shape, role="parameter")

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].global_shape

    def op(net, kind: str, shape: Sequence[int], result: str = "", /, **args: Arg) -> str:
        result = result or f"{kind.split('.')[1].strip('_')}_{len(net.ops)}"
        net.values[result] = Value(result, "f32", tuple(shape))
        loc = Loc(net.name, len(net.ops) + 1)
        net.ops.append(Op(kind, tuple(args.items()), (result,), loc=loc))
        return result

    def mm(self, x: str, w: str, result: str = "") -> str:
        shape = (self.shape(x)[0], self.shape(w)[1])
        return self.op("aten.mm.default", shape, result, self=Ref(x), mat2=Ref(w))

    def bmm(self, x: str, y: str, result: str = "") -> str:
        shape = (*self.shape(x)[:2], self.shape(y)[2])
        return self.op("aten.bmm.default", shape, result, self=Ref(x), mat2=Ref(y))

    def addmm(self, bias: str, x: str, w: str, result: str = "") -> str:
        shape = (self.shape(x)[0], self.shape(w)[1])
        args = {"self": Ref(bias), "mat1": Ref(x), "mat2": Ref(w)}
        return self.op("aten.addmm.default", shape, result, **args)

    def unary(self, kind: str, x: str, result: str = "", **args: Arg) -> str:
        return self.op(f"aten.{kind}", self.shape(x), result, self=Ref(x), **args)

    def relu(self, x: str, result: str = "") -> str:
        return self.unary("relu.default", x, result)

    def binary(self, kind: str, x: str, y: str, result: str = "") -> str:
        shape = max(self.shape(x), self.shape(y), key=lambda s: (len(s), math.prod(s)))
        return self.op(f"aten.{kind}", shape, result, self=Ref(x), other=Ref(y))

    def add(self, x: str, y: str, result: str = "") -> str:
        return self.binary("add.Tensor", x, y, result)

    def view(self, x: str, *shape: int, result: str = "") -> str:
        return self.op("aten.view.default", shape, result, self=Ref(x), size=tuple(shape))

    def permute(self, x: str, *dims: int, result: str = "") -> str:
        shape = [self.shape(x)[at] for at in dims]
        return self.op("aten.permute.default", shape, result, self=Ref(x), dims=tuple(dims))

    def softmax(self, x: str, result: str = "") -> str:
        return self.unary("_softmax.default", x, result, dim=-1, half_to_float=False)

    def layer_norm(self, x: str, name: str) -> str:
        *lead, size = self.shape(x)
        args: dict[str, Arg] = {"input": Ref(x), "normalized_shape": (size,)}
        args["weight"] = Ref(self.weight(f"{name}.weight", size))
        args["bias"] = Ref(self.weight(f"{name}.bias", size))
        result = self.op("aten.native_layer_norm.default", (*lead, size), **args, eps=1e-5)
        stats = [f"{result}.mean", f"{result}.rstd"]
        for stat in stats:
            self.values[stat] = Value(stat, "f32", (*lead, 1))
        self.ops[-1] = Op(
            self.ops[-1].kind, self.ops[-1].args, (result, *stats), loc=self.ops[-1].loc
        )
        return result

    def linear(self, x: str, name: str, size: int) -> str:
        """x [*b, k] times a weight [k, n] plus a bias, as exported: view, mm, view, add."""
        *lead, k = self.shape(x)
        w, bias = self.weight(f"{name}.weight", k, size), self.weight(f"{name}.bias", size)
        flat = self.view(x, math.prod(lead), k)
        return self.add(self.view(self.mm(flat, w), *lead, size), bias)

    def program(self, *outputs: str) -> Program:
        main = Function("main", tuple(self.inputs), outputs, self.values, tuple(self.ops))
        ports = [self._port(name) for name in self.inputs]
        signature = Signature(tuple(ports), tuple(self._port(name) for name in outputs))
        return Program({"main": main}, signature, name=self.name)

    def _port(self, name: str) -> Port:
        value = self.values[name]
        return Port(name, name, value.dtype, value.global_shape, value.role)


def mlp(batch: int = 64, size: int = 1024, hidden: int = 4096) -> Program:
    """relu(x w1) w2."""
    net = Network("mlp")
    x = net.input("x", batch, size)
    h = net.relu(net.mm(x, net.weight("w1", size, hidden), "h"), "a")
    return net.program(net.mm(h, net.weight("w2", hidden, size), "y"))


def attention(net: Network, x: str, name: str, heads: int) -> str:
    """Self-attention with q, k, v and output projections."""
    batch, length, size = net.shape(x)
    head = size // heads
    parts = []
    for part in "qkv":
        y = net.view(net.linear(x, f"{name}.{part}", size), batch, length, heads, head)
        order = (0, 2, 3, 1) if part == "k" else (0, 2, 1, 3)
        y = net.permute(y, *order)
        _, _, rows, columns = net.shape(y)
        parts.append(net.view(y, batch * heads, rows, columns))
    q, k, v = parts
    scores = net.unary("div.Scalar", net.bmm(q, k), other=float(head) ** 0.5)
    scores = net.view(scores, batch, heads, length, length)
    weights = net.view(net.softmax(scores), batch * heads, length, length)
    y = net.view(net.bmm(weights, v), batch, heads, length, head)
    y = net.view(net.permute(y, 0, 2, 1, 3), batch, length, size)
    return net.linear(y, f"{name}.out", size)


def encoder(
    layers: int = 2,
    batch: int = 8,
    length: int = 128,
    size: int = 384,
    heads: int = 12,
    vocabulary: int = 1000,
) -> Program:
    """A post-norm transformer encoder like MiniLM."""
    net = Network("encoder")
    ids = net.input("ids", batch, length, dtype="i64")
    table = net.weight("embedding.weight", vocabulary, size)
    shape = (batch, length, size)
    x = net.op("aten.embedding.default", shape, weight=Ref(table), indices=Ref(ids))
    x = net.layer_norm(net.add(x, net.weight("positions", length, size)), "embedding.norm")
    for layer in range(layers):
        name = f"layer.{layer}"
        x = net.layer_norm(net.add(attention(net, x, name, heads), x), f"{name}.norm1")
        y = net.unary("gelu.default", net.linear(x, f"{name}.up", 4 * size))
        y = net.linear(y, f"{name}.down", size)
        x = net.layer_norm(net.add(y, x), f"{name}.norm2")
    return net.program(x)
