"""What is kept split although data-parallel processes would hold it alike: by presets, by pins.

Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models* (2020):
stage 1 splits the optimizer's state, stage 2 the gradients too, stage 3 (FSDP) the parameters too.

A state that is split makes its update work on pieces: the gradient arrives by a reduce_scatter, and
a parameter that is whole is gathered behind the update. A parameter that is split is gathered where
it is used, in the forward and again in the backward pass. Nothing is split for being kept split:
the ops in between compute as data-parallel processes do (`Graph.keep`). The batch is split before
other presets work (`presets.pin_strategy`).

State that the user pinned does what stage 1 does, for its parameter alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from autopar.completion.presets.pinning import pin, split_along, split_further
from autopar.completion.presets.preset import AxisPreset
from autopar.completion.presets.update import Update, updates
from autopar.completion.problem.graph import Graph
from autopar.completion.problem.space import Form, bytes_of
from autopar.completion.propagate.propagation import Propagation
from autopar.ir.dims import dim_axes
from autopar.ir.expr.expression import planned
from autopar.ir.expr.facts import can_exceed, divides
from autopar.ir.layout import Origin
from autopar.ir.program import STORED_ROLES, Value

SMALL_BYTES = 64 * 1024
"""Vectors below this stay whole: gathering them costs more than they take."""

SMALL_CONSTANT_BYTES = 4 * 1024
"""Constants below this stay whole: masks and tables, not the weights of a folded model."""


def keep_split(graph: Graph, along: AxisPreset) -> None:
    """Splits what a preset keeps: the optimizer's state; gradients and parameters too, maybe.

    Each along its first dimension that divides evenly, as its pieces lie in one stretch there, or
    else unevenly along its largest. Dimensions that another preset splits already are taken only
    where there is no other.
    """
    keeps = along.preset.keeps
    _Zero(graph, along).pin(gradients="gradient" in keeps, parameters="parameter" in keeps)


def keep_states(graph: Graph) -> None:
    """Lets parameters lie as they would if none of the optimizer's state was pinned.

    The user's pin of a state says how that is stored. Its parameter stays as it is, unless pinned
    itself: the update works on pieces, and its new value is gathered.
    """
    every = [(each, [s for s in each.states if s in graph.annotated]) for each in updates(graph)]
    pinned = [(update, states) for update, states in every if states]
    if not pinned:
        return
    forms = _forms_without(graph, [state for _, states in pinned for state in states])
    for update, states in pinned:
        parameter = update.parameter
        if graph.pins[parameter] is None:
            graph.pins[parameter] = forms[parameter]
            graph.origins[parameter] = Origin("preset", "as if its state wasn't pinned")
        for state in states:
            pin_of_state = graph.pins[state] or forms[parameter]
            for axis in pin_of_state.splits.places.keys() - forms[parameter].splits.places.keys():
                for gradient in update.gradients:
                    graph.keep(gradient, axis)


def _forms_without(graph: Graph, values: Iterable[int]) -> list[Form]:
    """Returns the forms of a graph's values if some of the pins weren't there."""
    pins = list(graph.pins)
    for value in values:
        graph.pins[value] = None
    forms = Propagation(graph).forms
    graph.pins = pins
    return forms


class _Zero:
    """One of the presets, at work along one axis."""

    def __init__(self, graph: Graph, preset: AxisPreset) -> None:
        self.graph = graph
        self.preset = preset
        self.axis = preset.axis
        self.bases = self._bases()

    def pin(self, *, gradients: bool, parameters: bool) -> None:
        """Pins what belongs to the parameters."""
        graph = self.graph
        for update in updates(graph):
            split = self._split(update.parameter)
            if split is not None:
                self._pin_update(update, split, gradients=gradients, parameters=parameters)
        if parameters:
            for value in self._stored():
                split = self._split(value)
                if split is not None and self.axis not in graph.kept.get(value, ()):
                    self._keep([value], split)

    def _pin_update(
        self, update: Update, split: Form, *, gradients: bool, parameters: bool
    ) -> None:
        graph, further = self.graph, self._further(update, split)
        for state in update.states:
            pin(graph, state, further, self.preset)
        if parameters:
            self._keep([update.parameter], split)
        else:
            pin(graph, update.parameter, self.bases[update.parameter], self.preset)
        if gradients:
            self._keep(update.gradients, further)
        for gradient in update.gradients:
            # Whether it is pinned or not: the update's split doesn't lead the backward pass.
            graph.keep(gradient, self.axis)

    def _further(self, update: Update, split: Form) -> Form:
        """Returns the form of the state, which such a preset may have split along another axis."""
        pins, annotated = self.graph.pins, self.graph.annotated
        others = [v for v in (*update.states, *update.gradients) if v not in annotated]
        earlier = next((form for form in map(pins.__getitem__, others) if form is not None), None)
        if earlier is None or self.axis in earlier.splits.places:
            return split
        return self._split_more(update.parameter, earlier) or earlier

    def _keep(self, values: Iterable[int], split: Form) -> None:
        # What the user pinned, or is inherited, also says where its new content lies.
        graph = self.graph
        renewed = {out: into for out, into in graph.aliases if into in graph.fixed}
        for value in values:
            source = renewed.get(value)
            if value in graph.annotated or source in graph.annotated:
                continue
            like = None if source is None else graph.pins[source]
            pin(graph, value, like or split, self.preset)
            if (form := graph.pins[value]) and self.axis in form.splits.places:
                graph.keep(value, self.axis)

    def _stored(self) -> list[int]:
        """Returns the inputs that the program owns."""
        values, producer = self.graph.values, self.graph.producer
        return [
            number
            for number, value in enumerate(values)
            if value.role in STORED_ROLES and producer[number] is None
        ]

    def _bases(self) -> dict[int, Form]:
        """Returns how stored inputs lie along the other axes."""
        graph, stored = self.graph, self._stored()
        pins = [graph.pins[value] for value in stored]
        if any(form is not None and form.splits.items for form in pins):
            propagated = Propagation(graph).forms
            return {value: self._without_axis(value, propagated[value]) for value in stored}
        return {value: graph.replicated(value) for value in stored}

    def _without_axis(self, value: int, form: Form) -> Form:
        if value in self.graph.annotated:
            return form
        splits = self.graph.space.table.without(form.splits, self.axis)
        return self.graph.space.of_splits(splits, self.graph.values[value].global_shape)

    def _split(self, value: int) -> Form | None:
        """Returns a parameter's form with one more split; None if it had better be left alone."""
        known = self.graph.pins[value] if value in self.graph.fixed else None
        if known is not None and self.axis in known.splits.places:
            return None if value in self.graph.annotated else known
        base = self.bases[value]
        if _is_small(self.graph.values[value]) or self.axis in base.splits.places:
            return None
        return self._split_more(value, base)

    def _split_more(self, value: int, base: Form) -> Form | None:
        dim = self._dim(value, base)
        if dim is None:
            return None
        form = split_along(self.graph, value, dim, self.axis)
        return split_further(self.graph, value, base, form, self.axis)

    def _dim(self, value: int, base: Form) -> int | None:
        mesh = self.graph.space.mesh
        shape, parts = self.graph.values[value].global_shape, mesh.axis_size(self.axis)
        busy = base.splits.items
        taken = [mesh.axes_size(dim_axes(busy.get(d, ()))) for d in range(len(shape))]
        fitting = [d for d, size in enumerate(shape) if planned(size) // taken[d] >= parts]
        free = [d for d in fitting if taken[d] == 1] or fitting
        even = [d for d in free if divides(taken[d] * parts, shape[d])]
        return even[0] if even else max(free, key=lambda d: (planned(shape[d]), -d), default=None)


def _is_small(value: Value) -> bool:
    nbytes = bytes_of(value)
    if sum(can_exceed(size, 1) for size in value.global_shape) < 2:
        return nbytes < SMALL_BYTES
    return value.role != "parameter" and nbytes < SMALL_CONSTANT_BYTES
