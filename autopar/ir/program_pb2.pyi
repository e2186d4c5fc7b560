# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class File(_message.Message):
    __slots__ = ("magic", "format_version", "minimum_reader_version", "program", "deployment", "manifest", "sha256")
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_READER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    magic: str
    format_version: int
    minimum_reader_version: int
    program: Program
    deployment: Deployment
    manifest: Manifest
    sha256: bytes
    def __init__(self, magic: _Optional[str] = ..., format_version: _Optional[int] = ..., minimum_reader_version: _Optional[int] = ..., program: _Optional[_Union[Program, _Mapping]] = ..., deployment: _Optional[_Union[Deployment, _Mapping]] = ..., manifest: _Optional[_Union[Manifest, _Mapping]] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("name", "level", "mesh", "functions", "signature", "example", "relations", "strings", "locs", "exprs", "meshes", "layouts", "op_dists", "origins")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_FIELD_NUMBER: _ClassVar[int]
    RELATIONS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    LOCS_FIELD_NUMBER: _ClassVar[int]
    EXPRS_FIELD_NUMBER: _ClassVar[int]
    MESHES_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    OP_DISTS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    name: int
    level: int
    mesh: int
    functions: _containers.RepeatedCompositeFieldContainer[Function]
    signature: Signature
    example: Example
    relations: _containers.RepeatedCompositeFieldContainer[Relation]
    strings: _containers.RepeatedScalarFieldContainer[bytes]
    locs: _containers.RepeatedCompositeFieldContainer[Loc]
    exprs: _containers.RepeatedCompositeFieldContainer[Expr]
    meshes: _containers.RepeatedCompositeFieldContainer[Mesh]
    layouts: _containers.RepeatedCompositeFieldContainer[Layout]
    op_dists: _containers.RepeatedCompositeFieldContainer[OpDist]
    origins: _containers.RepeatedCompositeFieldContainer[Origin]
    def __init__(self, name: _Optional[int] = ..., level: _Optional[int] = ..., mesh: _Optional[int] = ..., functions: _Optional[_Iterable[_Union[Function, _Mapping]]] = ..., signature: _Optional[_Union[Signature, _Mapping]] = ..., example: _Optional[_Union[Example, _Mapping]] = ..., relations: _Optional[_Iterable[_Union[Relation, _Mapping]]] = ..., strings: _Optional[_Iterable[bytes]] = ..., locs: _Optional[_Iterable[_Union[Loc, _Mapping]]] = ..., exprs: _Optional[_Iterable[_Union[Expr, _Mapping]]] = ..., meshes: _Optional[_Iterable[_Union[Mesh, _Mapping]]] = ..., layouts: _Optional[_Iterable[_Union[Layout, _Mapping]]] = ..., op_dists: _Optional[_Iterable[_Union[OpDist, _Mapping]]] = ..., origins: _Optional[_Iterable[_Union[Origin, _Mapping]]] = ...) -> None: ...

class Loc(_message.Message):
    __slots__ = ("file", "line", "name")
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    file: int
    line: int
    name: int
    def __init__(self, file: _Optional[int] = ..., line: _Optional[int] = ..., name: _Optional[int] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("kind", "detail")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    kind: int
    detail: int
    def __init__(self, kind: _Optional[int] = ..., detail: _Optional[int] = ...) -> None: ...

class Expr(_message.Message):
    __slots__ = ("kind", "constant", "axis", "lhs", "rhs", "name", "least", "most", "planned", "step")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CONSTANT: _ClassVar[Expr.Kind]
        COORD: _ClassVar[Expr.Kind]
        ADD: _ClassVar[Expr.Kind]
        MULTIPLY: _ClassVar[Expr.Kind]
        FLOORDIV: _ClassVar[Expr.Kind]
        MIN: _ClassVar[Expr.Kind]
        MAX: _ClassVar[Expr.Kind]
        SIZE: _ClassVar[Expr.Kind]
    CONSTANT: Expr.Kind
    COORD: Expr.Kind
    ADD: Expr.Kind
    MULTIPLY: Expr.Kind
    FLOORDIV: Expr.Kind
    MIN: Expr.Kind
    MAX: Expr.Kind
    SIZE: Expr.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONSTANT_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    LHS_FIELD_NUMBER: _ClassVar[int]
    RHS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    kind: Expr.Kind
    constant: int
    axis: int
    lhs: int
    rhs: int
    name: int
    least: int
    most: int
    planned: int
    step: int
    def __init__(self, kind: _Optional[_Union[Expr.Kind, str]] = ..., constant: _Optional[int] = ..., axis: _Optional[int] = ..., lhs: _Optional[int] = ..., rhs: _Optional[int] = ..., name: _Optional[int] = ..., least: _Optional[int] = ..., most: _Optional[int] = ..., planned: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Relation(_message.Message):
    __slots__ = ("left", "sign", "right", "loc")
    LEFT_FIELD_NUMBER: _ClassVar[int]
    SIGN_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    LOC_FIELD_NUMBER: _ClassVar[int]
    left: int
    sign: int
    right: int
    loc: int
    def __init__(self, left: _Optional[int] = ..., sign: _Optional[int] = ..., right: _Optional[int] = ..., loc: _Optional[int] = ...) -> None: ...

class Mesh(_message.Message):
    __slots__ = ("parent", "slice", "array")
    class Slice(_message.Message):
        __slots__ = ("axis", "index", "others", "length")
        AXIS_FIELD_NUMBER: _ClassVar[int]
        INDEX_FIELD_NUMBER: _ClassVar[int]
        OTHERS_FIELD_NUMBER: _ClassVar[int]
        LENGTH_FIELD_NUMBER: _ClassVar[int]
        axis: int
        index: int
        others: _containers.RepeatedScalarFieldContainer[int]
        length: int
        def __init__(self, axis: _Optional[int] = ..., index: _Optional[int] = ..., others: _Optional[_Iterable[int]] = ..., length: _Optional[int] = ...) -> None: ...
    class Array(_message.Message):
        __slots__ = ("shape", "dim_names", "ids")
        SHAPE_FIELD_NUMBER: _ClassVar[int]
        DIM_NAMES_FIELD_NUMBER: _ClassVar[int]
        IDS_FIELD_NUMBER: _ClassVar[int]
        shape: _containers.RepeatedScalarFieldContainer[int]
        dim_names: _containers.RepeatedScalarFieldContainer[int]
        ids: Ints
        def __init__(self, shape: _Optional[_Iterable[int]] = ..., dim_names: _Optional[_Iterable[int]] = ..., ids: _Optional[_Union[Ints, _Mapping]] = ...) -> None: ...
    PARENT_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    parent: int
    slice: Mesh.Slice
    array: Mesh.Array
    def __init__(self, parent: _Optional[int] = ..., slice: _Optional[_Union[Mesh.Slice, _Mapping]] = ..., array: _Optional[_Union[Mesh.Array, _Mapping]] = ...) -> None: ...

class Ints(_message.Message):
    __slots__ = ("values", "runs")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    runs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ..., runs: _Optional[_Iterable[int]] = ...) -> None: ...

class Dim(_message.Message):
    __slots__ = ("sub_dims",)
    class SubDim(_message.Message):
        __slots__ = ("size", "axes")
        SIZE_FIELD_NUMBER: _ClassVar[int]
        AXES_FIELD_NUMBER: _ClassVar[int]
        size: int
        axes: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, size: _Optional[int] = ..., axes: _Optional[_Iterable[int]] = ...) -> None: ...
    SUB_DIMS_FIELD_NUMBER: _ClassVar[int]
    sub_dims: _containers.RepeatedCompositeFieldContainer[Dim.SubDim]
    def __init__(self, sub_dims: _Optional[_Iterable[_Union[Dim.SubDim, _Mapping]]] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("mesh", "dims", "partial", "mask", "offload")
    MESH_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    OFFLOAD_FIELD_NUMBER: _ClassVar[int]
    mesh: int
    dims: _containers.RepeatedCompositeFieldContainer[Dim]
    partial: _containers.RepeatedScalarFieldContainer[int]
    mask: Ints
    offload: int
    def __init__(self, mesh: _Optional[int] = ..., dims: _Optional[_Iterable[_Union[Dim, _Mapping]]] = ..., partial: _Optional[_Iterable[int]] = ..., mask: _Optional[_Union[Ints, _Mapping]] = ..., offload: _Optional[int] = ...) -> None: ...

class OpDist(_message.Message):
    __slots__ = ("mesh", "factors", "body", "pending")
    class Factor(_message.Message):
        __slots__ = ("name", "dim")
        NAME_FIELD_NUMBER: _ClassVar[int]
        DIM_FIELD_NUMBER: _ClassVar[int]
        name: int
        dim: Dim
        def __init__(self, name: _Optional[int] = ..., dim: _Optional[_Union[Dim, _Mapping]] = ...) -> None: ...
    class Pending(_message.Message):
        __slots__ = ("axis", "monoid", "operands")
        AXIS_FIELD_NUMBER: _ClassVar[int]
        MONOID_FIELD_NUMBER: _ClassVar[int]
        OPERANDS_FIELD_NUMBER: _ClassVar[int]
        axis: int
        monoid: int
        operands: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, axis: _Optional[int] = ..., monoid: _Optional[int] = ..., operands: _Optional[_Iterable[int]] = ...) -> None: ...
    MESH_FIELD_NUMBER: _ClassVar[int]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    mesh: int
    factors: _containers.RepeatedCompositeFieldContainer[OpDist.Factor]
    body: int
    pending: _containers.RepeatedCompositeFieldContainer[OpDist.Pending]
    def __init__(self, mesh: _Optional[int] = ..., factors: _Optional[_Iterable[_Union[OpDist.Factor, _Mapping]]] = ..., body: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[OpDist.Pending, _Mapping]]] = ...) -> None: ...

class Function(_message.Message):
    __slots__ = ("name", "values", "inputs", "outputs", "ops", "aliases")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    name: int
    values: _containers.RepeatedCompositeFieldContainer[Value]
    inputs: _containers.RepeatedScalarFieldContainer[int]
    outputs: _containers.RepeatedScalarFieldContainer[int]
    ops: _containers.RepeatedCompositeFieldContainer[Op]
    aliases: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[int] = ..., values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., inputs: _Optional[_Iterable[int]] = ..., outputs: _Optional[_Iterable[int]] = ..., ops: _Optional[_Iterable[_Union[Op, _Mapping]]] = ..., aliases: _Optional[_Iterable[int]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("name", "dtype", "shape", "role", "layout", "origin", "loc")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LOC_FIELD_NUMBER: _ClassVar[int]
    name: int
    dtype: int
    shape: _containers.RepeatedScalarFieldContainer[int]
    role: int
    layout: int
    origin: int
    loc: int
    def __init__(self, name: _Optional[int] = ..., dtype: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ..., role: _Optional[int] = ..., layout: _Optional[int] = ..., origin: _Optional[int] = ..., loc: _Optional[int] = ...) -> None: ...

class Op(_message.Message):
    __slots__ = ("kind", "args", "results", "dist", "origin", "loc", "stage", "microbatch", "phase", "plan", "times", "loops")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    DIST_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LOC_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MICROBATCH_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    LOOPS_FIELD_NUMBER: _ClassVar[int]
    kind: int
    args: _containers.RepeatedCompositeFieldContainer[Arg]
    results: _containers.RepeatedScalarFieldContainer[int]
    dist: int
    origin: int
    loc: int
    stage: int
    microbatch: int
    phase: int
    plan: _containers.RepeatedScalarFieldContainer[int]
    times: int
    loops: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[int] = ..., args: _Optional[_Iterable[_Union[Arg, _Mapping]]] = ..., results: _Optional[_Iterable[int]] = ..., dist: _Optional[int] = ..., origin: _Optional[int] = ..., loc: _Optional[int] = ..., stage: _Optional[int] = ..., microbatch: _Optional[int] = ..., phase: _Optional[int] = ..., plan: _Optional[_Iterable[int]] = ..., times: _Optional[int] = ..., loops: _Optional[_Iterable[int]] = ...) -> None: ...

class Arg(_message.Message):
    __slots__ = ("name", "ref", "dtype", "boolean", "integer", "big_integer", "number", "text", "expr", "list", "integers", "refs", "complex")
    class List(_message.Message):
        __slots__ = ("items",)
        ITEMS_FIELD_NUMBER: _ClassVar[int]
        items: _containers.RepeatedCompositeFieldContainer[Arg]
        def __init__(self, items: _Optional[_Iterable[_Union[Arg, _Mapping]]] = ...) -> None: ...
    class IntList(_message.Message):
        __slots__ = ("items",)
        ITEMS_FIELD_NUMBER: _ClassVar[int]
        items: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, items: _Optional[_Iterable[int]] = ...) -> None: ...
    class RefList(_message.Message):
        __slots__ = ("items",)
        ITEMS_FIELD_NUMBER: _ClassVar[int]
        items: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, items: _Optional[_Iterable[int]] = ...) -> None: ...
    class Complex(_message.Message):
        __slots__ = ("real", "imag")
        REAL_FIELD_NUMBER: _ClassVar[int]
        IMAG_FIELD_NUMBER: _ClassVar[int]
        real: float
        imag: float
        def __init__(self, real: _Optional[float] = ..., imag: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    BIG_INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EXPR_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    REFS_FIELD_NUMBER: _ClassVar[int]
    COMPLEX_FIELD_NUMBER: _ClassVar[int]
    name: int
    ref: int
    dtype: int
    boolean: bool
    integer: int
    big_integer: bytes
    number: float
    text: int
    expr: int
    list: Arg.List
    integers: Arg.IntList
    refs: Arg.RefList
    complex: Arg.Complex
    def __init__(self, name: _Optional[int] = ..., ref: _Optional[int] = ..., dtype: _Optional[int] = ..., boolean: bool = ..., integer: _Optional[int] = ..., big_integer: _Optional[bytes] = ..., number: _Optional[float] = ..., text: _Optional[int] = ..., expr: _Optional[int] = ..., list: _Optional[_Union[Arg.List, _Mapping]] = ..., integers: _Optional[_Union[Arg.IntList, _Mapping]] = ..., refs: _Optional[_Union[Arg.RefList, _Mapping]] = ..., complex: _Optional[_Union[Arg.Complex, _Mapping]] = ...) -> None: ...

class Signature(_message.Message):
    __slots__ = ("inputs", "outputs")
    class BoxDim(_message.Message):
        __slots__ = ("size", "start", "length")
        SIZE_FIELD_NUMBER: _ClassVar[int]
        START_FIELD_NUMBER: _ClassVar[int]
        LENGTH_FIELD_NUMBER: _ClassVar[int]
        size: int
        start: int
        length: int
        def __init__(self, size: _Optional[int] = ..., start: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...
    class Box(_message.Message):
        __slots__ = ("sub_dims",)
        SUB_DIMS_FIELD_NUMBER: _ClassVar[int]
        sub_dims: _containers.RepeatedCompositeFieldContainer[Signature.BoxDim]
        def __init__(self, sub_dims: _Optional[_Iterable[_Union[Signature.BoxDim, _Mapping]]] = ...) -> None: ...
    class Part(_message.Message):
        __slots__ = ("of", "shape", "start")
        OF_FIELD_NUMBER: _ClassVar[int]
        SHAPE_FIELD_NUMBER: _ClassVar[int]
        START_FIELD_NUMBER: _ClassVar[int]
        of: int
        shape: _containers.RepeatedScalarFieldContainer[int]
        start: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, of: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ..., start: _Optional[_Iterable[int]] = ...) -> None: ...
    class Port(_message.Message):
        __slots__ = ("name", "label", "dtype", "shape", "role", "box", "fill", "aliases", "part", "options")
        NAME_FIELD_NUMBER: _ClassVar[int]
        LABEL_FIELD_NUMBER: _ClassVar[int]
        DTYPE_FIELD_NUMBER: _ClassVar[int]
        SHAPE_FIELD_NUMBER: _ClassVar[int]
        ROLE_FIELD_NUMBER: _ClassVar[int]
        BOX_FIELD_NUMBER: _ClassVar[int]
        FILL_FIELD_NUMBER: _ClassVar[int]
        ALIASES_FIELD_NUMBER: _ClassVar[int]
        PART_FIELD_NUMBER: _ClassVar[int]
        OPTIONS_FIELD_NUMBER: _ClassVar[int]
        name: int
        label: int
        dtype: int
        shape: _containers.RepeatedScalarFieldContainer[int]
        role: int
        box: _containers.RepeatedCompositeFieldContainer[Signature.Box]
        fill: float
        aliases: _containers.RepeatedScalarFieldContainer[int]
        part: Signature.Part
        options: _containers.RepeatedCompositeFieldContainer[Arg]
        def __init__(self, name: _Optional[int] = ..., label: _Optional[int] = ..., dtype: _Optional[int] = ..., shape: _Optional[_Iterable[int]] = ..., role: _Optional[int] = ..., box: _Optional[_Iterable[_Union[Signature.Box, _Mapping]]] = ..., fill: _Optional[float] = ..., aliases: _Optional[_Iterable[int]] = ..., part: _Optional[_Union[Signature.Part, _Mapping]] = ..., options: _Optional[_Iterable[_Union[Arg, _Mapping]]] = ...) -> None: ...
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedCompositeFieldContainer[Signature.Port]
    outputs: _containers.RepeatedCompositeFieldContainer[Signature.Port]
    def __init__(self, inputs: _Optional[_Iterable[_Union[Signature.Port, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Signature.Port, _Mapping]]] = ...) -> None: ...

class Example(_message.Message):
    __slots__ = ("given", "defaults", "arguments")
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    given: _containers.RepeatedCompositeFieldContainer[Arg]
    defaults: _containers.RepeatedCompositeFieldContainer[Arg]
    arguments: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, given: _Optional[_Iterable[_Union[Arg, _Mapping]]] = ..., defaults: _Optional[_Iterable[_Union[Arg, _Mapping]]] = ..., arguments: _Optional[_Iterable[int]] = ...) -> None: ...

class Deployment(_message.Message):
    __slots__ = ("program_count", "axes", "program", "process_id", "row_major", "shape", "coords", "groups")
    class Group(_message.Message):
        __slots__ = ("name", "axes", "ranks", "lengths")
        NAME_FIELD_NUMBER: _ClassVar[int]
        AXES_FIELD_NUMBER: _ClassVar[int]
        RANKS_FIELD_NUMBER: _ClassVar[int]
        LENGTHS_FIELD_NUMBER: _ClassVar[int]
        name: str
        axes: _containers.RepeatedScalarFieldContainer[int]
        ranks: Ints
        lengths: Ints
        def __init__(self, name: _Optional[str] = ..., axes: _Optional[_Iterable[int]] = ..., ranks: _Optional[_Union[Ints, _Mapping]] = ..., lengths: _Optional[_Union[Ints, _Mapping]] = ...) -> None: ...
    PROGRAM_COUNT_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_MAJOR_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    COORDS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    program_count: int
    axes: _containers.RepeatedScalarFieldContainer[str]
    program: Ints
    process_id: Ints
    row_major: bool
    shape: _containers.RepeatedScalarFieldContainer[int]
    coords: _containers.RepeatedCompositeFieldContainer[Ints]
    groups: _containers.RepeatedCompositeFieldContainer[Deployment.Group]
    def __init__(self, program_count: _Optional[int] = ..., axes: _Optional[_Iterable[str]] = ..., program: _Optional[_Union[Ints, _Mapping]] = ..., process_id: _Optional[_Union[Ints, _Mapping]] = ..., row_major: bool = ..., shape: _Optional[_Iterable[int]] = ..., coords: _Optional[_Iterable[_Union[Ints, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[Deployment.Group, _Mapping]]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("autopar_version", "model", "files", "report", "weight_digests", "device", "strings")
    class FileEntry(_message.Message):
        __slots__ = ("path", "sha256", "size_bytes")
        PATH_FIELD_NUMBER: _ClassVar[int]
        SHA256_FIELD_NUMBER: _ClassVar[int]
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        path: int
        sha256: bytes
        size_bytes: int
        def __init__(self, path: _Optional[int] = ..., sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ...) -> None: ...
    class ReportEntry(_message.Message):
        __slots__ = ("category", "subject", "detail", "loc", "size_bytes")
        CATEGORY_FIELD_NUMBER: _ClassVar[int]
        SUBJECT_FIELD_NUMBER: _ClassVar[int]
        DETAIL_FIELD_NUMBER: _ClassVar[int]
        LOC_FIELD_NUMBER: _ClassVar[int]
        SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
        category: int
        subject: int
        detail: int
        loc: Loc
        size_bytes: int
        def __init__(self, category: _Optional[int] = ..., subject: _Optional[int] = ..., detail: _Optional[int] = ..., loc: _Optional[_Union[Loc, _Mapping]] = ..., size_bytes: _Optional[int] = ...) -> None: ...
    class WeightDigests(_message.Message):
        __slots__ = ("block_bytes", "header", "tensors")
        class Tensor(_message.Message):
            __slots__ = ("name", "blocks")
            NAME_FIELD_NUMBER: _ClassVar[int]
            BLOCKS_FIELD_NUMBER: _ClassVar[int]
            name: int
            blocks: _containers.RepeatedScalarFieldContainer[int]
            def __init__(self, name: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...
        BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
        HEADER_FIELD_NUMBER: _ClassVar[int]
        TENSORS_FIELD_NUMBER: _ClassVar[int]
        block_bytes: int
        header: int
        tensors: _containers.RepeatedCompositeFieldContainer[Manifest.WeightDigests.Tensor]
        def __init__(self, block_bytes: _Optional[int] = ..., header: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[Manifest.WeightDigests.Tensor, _Mapping]]] = ...) -> None: ...
    AUTOPAR_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    autopar_version: int
    model: int
    files: _containers.RepeatedCompositeFieldContainer[Manifest.FileEntry]
    report: _containers.RepeatedCompositeFieldContainer[Manifest.ReportEntry]
    weight_digests: Manifest.WeightDigests
    device: int
    strings: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, autopar_version: _Optional[int] = ..., model: _Optional[int] = ..., files: _Optional[_Iterable[_Union[Manifest.FileEntry, _Mapping]]] = ..., report: _Optional[_Iterable[_Union[Manifest.ReportEntry, _Mapping]]] = ..., weight_digests: _Optional[_Union[Manifest.WeightDigests, _Mapping]] = ..., device: _Optional[int] = ..., strings: _Optional[_Iterable[bytes]] = ...) -> None: ...
