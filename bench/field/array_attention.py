"""Functions of other arrays, called with NumPy arrays: MLX, ONNX Runtime, ONNX's reference, Keras, JAX.

bench/field_report.py runs them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy

Array = Any


def mlx(query: Array, key: Array, value: Array, bias: Array = None, mask: Array = None, scale: float | None = None) -> Array:
    """mlx.core.fast.scaled_dot_product_attention; causality is written as a mask."""
    from mlx import core

    tensors = (core.array(each.swapaxes(1, 2)) for each in (query, key, value))
    given = _both(bias, mask, query.dtype)
    output = core.fast.scaled_dot_product_attention(
        *tensors, scale=query.shape[-1] ** -0.5 if scale is None else scale, mask=None if given is None else core.array(given)
    )
    return numpy.array(output).swapaxes(1, 2)


def _both(bias: Array, mask: Array, dtype: Any) -> Array:
    if bias is None or mask is None:
        return mask if bias is None else bias
    return numpy.where(mask, bias, dtype.type("-inf"))


@cache
def _model(dtype: str, masked: str, attributes: tuple[tuple[str, Any], ...]) -> Any:
    """A model of one Attention operator of ONNX's opset 23."""
    from onnx import TensorProto, helper

    types = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bool": TensorProto.BOOL}
    names = ["Q", "K", "V", "mask"][: 4 if masked else 3]
    inputs = [
        helper.make_tensor_value_info(name, types[masked if name == "mask" else dtype], [f"{name}{axis}" for axis in range(4)])
        for name in names
    ]
    output = helper.make_tensor_value_info("Y", types[dtype], list("BHSD"))
    node = helper.make_node("Attention", names, ["Y"], **dict(attributes))
    return helper.make_model(
        helper.make_graph([node], "attention", inputs, [output]), opset_imports=[helper.make_opsetid("", 23)], ir_version=11
    )


@cache
def _session(*of: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(_model(*of).SerializeToString(), options, ["CPUExecutionProvider"])


@cache
def _reference(*of: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(_model(*of))


def _onnx(
    make: Any, query: Array, key: Array, value: Array, bias: Array, mask: Array, scale: Any, causal: bool, cap: Any
) -> Array:
    given = _both(bias, mask, query.dtype)
    attributes = {"scale": scale, "is_causal": int(causal) or None, "softcap": cap}
    used = tuple((name, number) for name, number in attributes.items() if number is not None)
    feeds = dict(zip("QKV", (numpy.ascontiguousarray(each.swapaxes(1, 2)) for each in (query, key, value)), strict=True))
    if given is not None:
        feeds["mask"] = numpy.ascontiguousarray(given)
    runner = make(str(query.dtype), "" if given is None else str(given.dtype), used)
    return runner.run(None, feeds)[0].swapaxes(1, 2)


def onnxruntime(query: Array, key: Array, value: Array, bias: Array = None, mask: Array = None, scale: float | None = None,
                is_causal: bool = False, softcap: float | None = None) -> Array:  # fmt: skip
    """ONNX Runtime's Attention on a CPU."""
    return _onnx(_session, query, key, value, bias, mask, scale, is_causal, softcap)


def onnx(query: Array, key: Array, value: Array, bias: Array = None, mask: Array = None, scale: float | None = None,
         is_causal: bool = False, softcap: float | None = None) -> Array:  # fmt: skip
    """ONNX's reference implementation of Attention."""
    return _onnx(_reference, query, key, value, bias, mask, scale, is_causal, softcap)


def keras(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, scale: float | None = None,
          is_causal: bool = False) -> Any:  # fmt: skip
    """keras.ops.dot_product_attention with the backend of KERAS_BACKEND. With torch it takes a bias or a mask."""
    from keras import ops
    from keras.backend import backend

    if bias is not None and mask is not None and backend() == "torch":
        bias, mask = numpy.where(mask, bias, bias.dtype.type("-inf")), None
    return ops.convert_to_numpy(ops.dot_product_attention(query, key, value, bias, mask, scale, is_causal))


def jax(query: Array, key: Array, value: Array, bias: Array = None, mask: Array = None, scale: float | None = None) -> Array:
    """jax.nn.dot_product_attention. Each call compiles anew; the cache would hold thousands of programs."""
    from jax import clear_caches
    from jax.nn import dot_product_attention

    clear_caches()
    return numpy.array(dot_product_attention(query, key, value, bias, mask, scale=scale))
