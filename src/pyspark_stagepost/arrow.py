"""Turn a store's columns into the Arrow batches that Spark takes, which must have exactly its types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def record_batch(columns: Sequence[Any], target: pa.Schema) -> pa.RecordBatch:
    """Return the batch. A column is a sequence of values, or an array with the Arrow PyCapsule interface.

    Numbers of microseconds become timestamps. Bytes that are no UTF-8 become replacement characters. An array of texts
    is UTF-8 already.
    """
    arrays = [_array(column, field.type) for column, field in zip(columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _array(column: Any, target: pa.DataType) -> pa.Array:
    is_text = pa.types.is_string(target)
    if hasattr(column, "__arrow_c_array__"):
        array = pa.array(column)
        is_text = is_text and not pa.types.is_string(array.type)
    elif is_text:
        array = pa.array(column, pa.binary())
    else:
        array = pa.array(column, pa.int64() if pa.types.is_timestamp(target) else target)
    return _text(array) if is_text else array.cast(target)


def _text(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if each is None else each.decode(errors="replace") for each in array.to_pylist()]
        return pa.array(texts, pa.string())
