"""Logits of chosen rows alone: the output layer moved behind a choice of rows, in the graph itself.

As it is exported a model projects every token onto the vocabulary, of which scoring reads some rows
and generation one.
"""

from __future__ import annotations

import weakref
from typing import Any, cast

import numpy

from evalution_openvino.upstream import Graph, opset13

ROWS = "logit_rows"
"""The input that names the rows: token t of sequence s of a pass is row `s * tokens + t`."""
_BEHIND_IT = ("Result", "Convert", "Multiply", "Divide", "Tanh", "Add", "Subtract")
"""What may follow the output layer and still treat each row by itself."""
_DEEPEST = 8


def choose_rows(model: Graph) -> bool:
    """Let the model take `ROWS`, and give logits [rows, 1, vocabulary]; False: it can't be done."""
    layer = _output_layer(model)
    if layer is None:
        return False
    hidden = layer.input_value(0)
    shape = hidden.get_partial_shape()
    if shape.rank.get_length() != 3 or shape[2].is_dynamic or layer.get_attributes()["transpose_a"]:
        return False
    rows = opset13.parameter([-1], numpy.int64, name=ROWS)
    rows.output(0).set_names({ROWS})
    flat = opset13.reshape(hidden, numpy.array([-1, shape[2].get_length()]), special_zero=False)
    chosen = opset13.unsqueeze(opset13.gather(flat, rows, numpy.int64(0)), numpy.int64(1))
    layer.input(0).replace_source_output(chosen.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()
    return True


def ask_for_last_rows(loaded: Any) -> None:
    """Let the forward pass of an `OVModelForCausalLM` with `ROWS` give each sequence's last row.

    That is what `generate` reads; the logits then are [sequences, 1, vocabulary].
    """
    # No reference to the model from itself, which would keep its memory after the last use.
    own, model = cast(Any, type(loaded)).prepare_inputs, weakref.ref(loaded)

    def prepare_inputs(*arguments: Any, **named: Any) -> dict[str, Any]:
        inputs = own(model(), *arguments, **named)
        sequences, tokens = inputs["input_ids"].shape
        inputs[ROWS] = numpy.arange(1, sequences + 1, dtype=numpy.int64) * tokens - 1
        return inputs

    loaded.prepare_inputs = prepare_inputs


def _output_layer(model: Graph) -> Any:
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
