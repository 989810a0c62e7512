"""Arrays at the boundary: what comes in becomes a real floating JAX array, or a clear refusal."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gaussflow.errors import InvalidInput, warn_about_single_precision


def default_dtype() -> Any:
    """float64, or float32 (with one :class:`PrecisionWarning`) where the user left JAX in single precision."""
    if jax.config.jax_enable_x64:  # ty: ignore
        return jnp.float64
    warn_about_single_precision()
    return jnp.float32


def is_concrete(*values: Any) -> bool:
    """True if no leaf of ``values`` is a JAX tracer, so that numbers may be looked at."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(values))


def shape_in_words(shape: tuple[int, ...]) -> str:
    return "a scalar" if shape == () else f"shape {tuple(shape)}"


def as_real_array(value: Any, argument: str, *, finite: bool = True) -> Array:
    """``value`` as a real floating array of the default precision.

    Integers and booleans are converted and lower precision is promoted. Raises :class:`InvalidInput` for anything that
    is not numbers, for complex numbers, and (concrete values only) for NaN or infinite entries when ``finite``.
    """
    return jnp.asarray(as_host_array(value, argument, finite=finite))


def as_host_array(value: Any, argument: str, *, finite: bool = True) -> Any:
    """As :func:`as_real_array`, but concrete values stay NumPy arrays: a compiled function takes them at no extra cost."""
    if isinstance(value, jax.core.Tracer):
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise _complex(argument)
        return value.astype(default_dtype())
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        if not is_concrete(value):  # a nested list that holds tracers
            return as_host_array(jnp.asarray(value), argument, finite=finite)
        raise InvalidInput(
            argument,
            got="rows of different lengths",
            wanted="a rectangular array of real numbers",
            fix="check that every row has the same number of entries",
        ) from None
    if np.iscomplexobj(array):
        raise _complex(argument)
    if array.dtype == object or not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        if not is_concrete(value):
            return as_host_array(jnp.asarray(value), argument, finite=finite)
        if not jnp.issubdtype(array.dtype, np.number):  # also admits bfloat16 and its kin
            shown = type(value).__name__ if array.dtype == object else f"entries of type {array.dtype}"
            raise InvalidInput(argument, got=shown, wanted="real numbers", fix="pass numbers or an array of them")
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


def _complex(argument: str) -> InvalidInput:
    return InvalidInput(argument, got="complex numbers", wanted="real numbers", fix="take the real part, if that is meant")


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
