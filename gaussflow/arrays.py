"""Arrays at the boundary: what comes in becomes a real floating JAX array, or a clear refusal."""

from __future__ import annotations

import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gaussflow.errors import InvalidInput, warn_about_single_precision


def default_dtype() -> Any:
    """float64, or float32 (with one :class:`PrecisionWarning`) where the user left JAX in single precision."""
    if getattr(jax.config, "jax_enable_x64"):  # noqa: B009 (the attribute is not in its type)
        return jnp.float64
    warn_about_single_precision()
    return jnp.float32


def is_concrete(*values: Any) -> bool:
    """True if no leaf of ``values`` is a JAX tracer, so that numbers may be looked at."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(values))


def input_precision(value: Any) -> np.dtype:
    """The floating type in whose rounding a concrete ``value`` was written: double for integers and bare numbers."""
    dtype = np.asarray(value).dtype
    return dtype if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 8 else np.dtype(np.float64)


def shape_in_words(shape: tuple[int, ...]) -> str:
    return "a scalar" if shape == () else f"shape {tuple(shape)}"


def as_real_array(value: Any, argument: str, *, finite: bool = True) -> Array:
    """``value`` as a real floating array of the default precision.

    Integers and booleans are converted and lower precision is promoted. Raises :class:`InvalidInput` for anything that
    is not numbers, for complex numbers, and (concrete values only) for NaN or infinite entries when ``finite``.
    """
    return jnp.asarray(as_host_array(value, argument, finite=finite))


def as_host_array(value: Any, argument: str, *, finite: bool = True) -> Any:
    """As :func:`as_real_array`, but concrete values stay NumPy arrays, which a compiled function takes at no cost."""
    if isinstance(value, jax.core.Tracer):
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise _complex(argument)
        return value.astype(default_dtype())
    if np.ma.is_masked(value):
        raise InvalidInput(argument, got="masked entries", wanted="a complete array", fix="impute or remove them")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        if not is_concrete(value):
            return _of_tracers(value, argument, finite)
        raise _ragged(argument) from None
    if np.iscomplexobj(array):
        raise _complex(argument)
    if array.dtype == object:
        if not is_concrete(value):
            return _of_tracers(value, argument, finite)
        if not array.size or not all(isinstance(entry, numbers.Real) for entry in array.flat):
            raise InvalidInput(
                argument, got=type(value).__name__, wanted="real numbers", fix="pass numbers or an array of them"
            )
    elif array.dtype.kind not in "biuf" and not jnp.issubdtype(array.dtype, jnp.floating):  # bfloat16 and its kin count
        raise InvalidInput(
            argument,
            got=f"entries of type {array.dtype}",
            wanted="real numbers",
            fix="pass numbers or an array of them",
        )
    array = array.astype(np.float64)
    if finite and not np.all(np.isfinite(array)):
        bad = np.argwhere(~np.isfinite(array))
        first = array[tuple(bad[0])]
        where = f" first at index {tuple(int(i) for i in bad[0])}" if array.ndim else ""
        raise InvalidInput(
            argument,
            got=f"{len(bad)} NaN or infinite {'entry' if len(bad) == 1 else 'entries'} ({first}{where})",
            wanted="finite real numbers",
            fix="remove or impute the missing values",
        )
    dtype = default_dtype()
    if finite and array.size and np.max(np.abs(array)) > float(jnp.finfo(dtype).max):
        raise InvalidInput(
            argument,
            got=f"a value of size {np.max(np.abs(array)):.3g}",
            wanted="numbers that single precision can hold",
            fix='add jax.config.update("jax_enable_x64", True) at the start of the program',
        )
    return array.astype(dtype)


def _of_tracers(value: Any, argument: str, finite: bool) -> Any:
    """A nested list that holds tracers, as one tracer."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        raise _ragged(argument) from None
    return as_host_array(array, argument, finite=finite)


def _ragged(argument: str) -> InvalidInput:
    return InvalidInput(
        argument,
        got="rows of different lengths",
        wanted="a rectangular array of real numbers",
        fix="check that every row has the same number of entries",
    )


def _complex(argument: str) -> InvalidInput:
    return InvalidInput(
        argument, got="complex numbers", wanted="real numbers", fix="take the real part, if that is meant"
    )


def as_number(value: Any, argument: str, *, finite: bool = True) -> Any:
    """``value`` as one real number of the default precision: a NumPy scalar, or the tracer it is.

    Numbers stay on the host until a compiled function takes them.
    """
    if type(value) is float and math.isfinite(value):
        return np.asarray(value, dtype=default_dtype())
    number = as_host_array(value, argument, finite=finite)
    if number.shape != ():
        raise InvalidInput(argument, got=shape_in_words(number.shape), wanted="one number")
    return number
