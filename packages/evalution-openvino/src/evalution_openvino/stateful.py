"""An OpenVINO model that keeps keys and values as its state, and logits of chosen rows alone.

As it is exported a model projects every token onto the vocabulary, of which scoring reads some rows
and generation one. `choose_rows` moves the output layer behind a choice of rows, in the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import numpy
from numpy.typing import NDArray

from evalution_openvino.runtime import load_openvino
from evalution_openvino.upstream import Compiled, Graph, Tensor

ROWS = "logit_rows"
"""The input that names the rows: token t of sequence s of a pass is row `s * tokens + t`."""
_BEHIND_IT = ("Result", "Convert", "Multiply", "Divide", "Tanh", "Add", "Subtract")
"""Operations that may follow the output layer, as they treat each row by itself."""
_DEEPEST = 8

Ids = NDArray[numpy.int64]
Logits = NDArray[numpy.float32]
_TOKENS_AXIS = 2
"""Of a state [sequences, heads, tokens, head size]."""
_NO_MEMORY = ("failed to allocate", "bad_alloc", "can't allocate memory")
"""Parts of the messages of a CPU's buffers, OpenVINO's tensors and torch's."""


def choose_rows(model: Graph) -> bool:
    """Let the model take `ROWS` and return logits [rows, 1, vocabulary], where that can be done.

    Returns whether it was.
    """
    opset: Any = import_module("openvino.opset13")
    layer = _find_output_layer(model)
    if layer is None:
        return False
    hidden = layer.input_value(0)
    shape = hidden.get_partial_shape()
    if shape.rank.get_length() != 3 or shape[2].is_dynamic or layer.get_attributes()["transpose_a"]:
        return False
    rows = opset.parameter([-1], numpy.int64, name=ROWS)
    rows.output(0).set_names({ROWS})
    flat = opset.reshape(hidden, numpy.array([-1, shape[2].get_length()]), special_zero=False)
    chosen = opset.unsqueeze(opset.gather(flat, rows, numpy.int64(0)), numpy.int64(1))
    layer.input(0).replace_source_output(chosen.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()
    return True


def ask_for_last_rows(loaded: Any) -> None:
    """Let the forward pass of an `OVModelForCausalLM` with `ROWS` return each sequence's last row.

    `generate` reads no other; the logits then are [sequences, 1, vocabulary].
    """
    # No reference to the model from itself, which would keep its memory after the last use.
    own, model = cast(Any, type(loaded)).prepare_inputs, weakref.ref(loaded)

    def prepare_inputs(*arguments: Any, **named: Any) -> dict[str, Any]:
        inputs = own(model(), *arguments, **named)
        sequences, tokens = inputs["input_ids"].shape
        inputs[ROWS] = numpy.arange(1, sequences + 1, dtype=numpy.int64) * tokens - 1
        return inputs

    loaded.prepare_inputs = prepare_inputs


def _find_output_layer(model: Graph) -> Any:
    node = model.output("logits").get_node()
    for _ in range(_DEEPEST):
        if node.get_type_name() == "MatMul":
            return node
        sources = [value.get_node() for value in node.input_values()]
        varying = [source for source in sources if not _is_constant(source)]
        if node.get_type_name() not in _BEHIND_IT or len(varying) != 1:
            return None
        node = varying[0]
    return None


def _is_constant(node: Any) -> bool:
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant"


@contextmanager
def memory_errors() -> Generator[None]:
    """Raise `MemoryError` for the bare errors that OpenVINO and torch raise for it."""
    try:
        yield
    except RuntimeError as error:
        if any(words in str(error).lower() for words in _NO_MEMORY):
            raise MemoryError(str(error)) from error
        raise


@dataclass(frozen=True, slots=True)
class Pass:
    """Tokens for one run of the model, [sequences, tokens] like `positions`.

    `mask` is [sequences, all tokens so far and these], 0 for padding. Sequence i continues sequence
    `origins[i]` of the run before. `rows` names the logits that are wanted (see `ROWS`).
    """

    token_ids: Ids
    positions: Ids
    mask: Ids
    origins: Sequence[int]
    rows: Ids


@dataclass(frozen=True, slots=True)
class RunForms:
    """The runs that a model allows, with its own logits as a result.

    Attributes:
        shares: a run may continue another, padding and all.
        cuts: it may also continue the first part of another.
        pads: sequences of one run may differ in length.
    """

    shares: bool
    cuts: bool
    pads: bool


@dataclass(frozen=True, slots=True)
class State:
    """Keys and values of all tokens so far, `columns` of them a sequence."""

    tensors: tuple[Tensor, ...]
    columns: int

    def first(self, columns: int) -> State:
        """Return the state of the first tokens alone."""
        if columns == self.columns:
            return self
        kept = (numpy.ascontiguousarray(tensor.data[:, :, :columns]) for tensor in self.tensors)
        return State(tuple(load_openvino().Tensor(data) for data in kept), columns)

    @property
    def is_cuttable(self) -> bool:
        """True if the tokens lie along the axis that `first` cuts."""
        return all(
            len(tensor.shape) == 4
            and tensor.shape[_TOKENS_AXIS] == self.columns
            and tensor.element_type == load_openvino().Type.f32
            for tensor in self.tensors
        )


class StatefulRequest:
    """Runs an infer request of its own, and counts the tokens that it holds.

    Args:
        compiled: the compiled model.
        picks_rows: whether it takes `ROWS`.
    """

    def __init__(self, compiled: Compiled, *, picks_rows: bool):
        self._request = compiled.create_infer_request()
        self._inputs = {name for port in compiled.inputs for name in port.get_names()}
        self._picks_rows = picks_rows
        self.columns = 0
        self.forwarded = 0
        """Tokens run so far, padding included."""

    @property
    def continues(self) -> bool:
        """True if a run can continue others: the model keeps a state and takes `beam_idx`."""
        return {"attention_mask", "beam_idx"} <= self._inputs and bool(self._request.query_state())

    def reset(self) -> None:
        """Drop all tokens."""
        self._request.reset_state()
        self.columns = 0

    @memory_errors()
    def run(self, given: Pass) -> Logits:
        """Return logits [rows, vocabulary] of the wanted rows, which are valid until the next run.

        Raises:
            MemoryError: the state is undefined then; `reset` or `restore` it.
        """
        rows = given.rows if len(given.rows) else numpy.zeros(1, numpy.int64)
        inputs: dict[str, Any] = {
            "input_ids": given.token_ids,
            "attention_mask": given.mask,
            "position_ids": given.positions,
            "beam_idx": numpy.array(given.origins, numpy.int32),
            ROWS: rows,
        }
        self._request.infer({name: inputs[name] for name in inputs if name in self._inputs})
        self.columns += given.token_ids.shape[1]
        self.forwarded += given.token_ids.size
        logits: Any = self._request.get_tensor("logits").data
        if self._picks_rows:
            return logits[:, 0]
        return logits.reshape(-1, logits.shape[-1])[rows]

    @memory_errors()
    def save(self) -> State:
        """Return a copy of the state."""
        copies: list[Tensor] = []
        for variable in self._request.query_state():
            found: Any = variable.state
            copy = load_openvino().Tensor(found.element_type, found.shape)
            found.copy_to(copy)
            copies.append(copy)
        return State(tuple(copies), self.columns)

    @memory_errors()
    def restore(self, state: State) -> None:
        """Continue from a saved state."""
        self._request.reset_state()
        for variable, tensor in zip(self._request.query_state(), state.tensors, strict=True):
            variable.state = tensor
        self.columns = state.columns


def report_memory_errors(loaded: Any) -> None:
    """Let `generate` of an `OVModelForCausalLM` raise `MemoryError` too."""
    # No reference to the model from itself, which would keep its memory after the last use.
    own, model = cast(Any, type(loaded)).generate, weakref.ref(loaded)

    @memory_errors()
    def generate(*arguments: Any, **named: Any) -> Any:
        held: Any = model()
        try:
            return own(held, *arguments, **named)
        finally:
            # A beam search whose first step fails leaves Optimum Intel 2.2 with this mark, by which
            # the next call of whatever kind would run one row for all.
            held._first_iter_beam_search = False

    loaded.generate = generate
