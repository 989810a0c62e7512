"""What comes in becomes a real floating array, or a refusal of one line that names the argument."""

import fractions
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gaussflow as gf
from gaussflow.arrays import as_host_array, as_number, as_real_array, input_precision


@pytest.mark.parametrize(
    "value",
    [
        [[1, 2], [3, 4]],
        ((1, 2), (3, 4)),
        np.array([[1, 2], [3, 4]], dtype=np.int8),
        np.array([[1, 2], [3, 4]], dtype=np.float16),
        np.array([[1, 2], [3, 4]], dtype=np.longdouble),
        jnp.array([[1, 2], [3, 4]], dtype=jnp.bfloat16),
        [np.array([1, 2]), jnp.array([3.0, 4.0])],
        np.array([[1, 2], [3, 4]], dtype=object),
        [[fractions.Fraction(1), 2], [3, 4.0]],
    ],
)
def test_numbers_of_every_kind_become_double_precision(value):
    array = as_real_array(value, "A")
    assert isinstance(array, jax.Array)
    assert array.dtype == np.float64
    assert np.array_equal(array, [[1.0, 2.0], [3.0, 4.0]])
    host = as_host_array(value, "A")
    assert type(host) is np.ndarray
    assert host.dtype == np.float64


def test_integers_beyond_64_bits_and_booleans():
    assert as_real_array([10**30, 1], "A")[0] == 1e30
    assert np.array_equal(as_real_array([True, False], "A"), [1.0, 0.0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "got NoneType; wanted real numbers"),
        ("one", "got entries of type <U3; wanted real numbers"),
        ([["1", "2"]], "got entries of type <U1"),
        ({"A": 1}, "got dict; wanted real numbers"),
        ([1, None], "got list; wanted real numbers"),
        ([[1, 2], [3]], "got rows of different lengths; wanted a rectangular array of real numbers"),
        ([1 + 2j], "got complex numbers; wanted real numbers"),
        (np.ones(2, complex), "got complex numbers"),
        ([1.0, np.nan], r"got 1 NaN or infinite entry (nan first at index (1,)); wanted finite real numbers"),
        ([[np.inf, 1], [1, -np.inf]], r"got 2 NaN or infinite entries (inf first at index (0, 0))"),
        (np.nan, "got 1 NaN or infinite entry (nan)"),
        (np.ma.masked_array([1.0, 2.0], mask=[False, True]), "got masked entries"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "got entries of type datetime64[D]"),
        (np.array([3], dtype="timedelta64[s]"), "got entries of type timedelta64[s]"),
    ],
)
def test_refusals_are_one_line_that_names_the_argument(value, text):
    with pytest.raises(gf.InvalidInput) as refusal:
        as_real_array(value, "parameters.A")
    message = str(refusal.value)
    assert message.startswith("parameters.A: ")
    assert text in message
    assert "\n" not in message
    assert isinstance(refusal.value, ValueError)
    assert isinstance(refusal.value, gf.GaussflowError)


def test_infinity_is_allowed_where_asked_for():
    assert as_real_array([np.inf], "horizon", finite=False)[0] == np.inf


def test_tracers_pass_through():
    assert jax.jit(lambda x: as_real_array(x, "A"))(jnp.arange(3)).dtype == np.float64
    nested = jax.jit(lambda x: as_real_array([[x, 1.0], [0.0, 2 * x]], "A"))(3.0)
    assert np.array_equal(nested, [[3.0, 1.0], [0.0, 6.0]])
    with pytest.raises(gf.InvalidInput, match="complex"):
        jax.jit(lambda x: as_real_array(x, "A"))(jnp.ones(2, complex))
    with pytest.raises(gf.InvalidInput, match="rows of different lengths"):
        jax.jit(lambda x: as_real_array([[x, 1.0], [x]], "A"))(1.0)


def test_numbers():
    assert as_number(2, "t1").shape == ()
    assert as_number(np.float32(0.5), "t1") == 0.5
    with pytest.raises(gf.InvalidInput, match=r"^t1: got shape \(1,\); wanted one number$"):
        as_number([1.0], "t1")
    with pytest.raises(gf.InvalidInput, match=r"^t1: got 1 NaN or infinite entry \(inf\)"):
        as_number(float("inf"), "t1")


def test_precision_of_the_input():
    assert input_precision(np.ones(2, np.float32)) == np.float32
    assert input_precision(jnp.ones(2, jnp.bfloat16)).itemsize == 2
    for wide in ([1, 2], np.ones(2, int), np.ones(2), np.ones(2, np.longdouble), 1.0):
        assert input_precision(wide) == np.float64


def test_refusals_pickle():
    refusal = gf.InvalidInput("A", got="a", wanted="b", fix="c")
    copy = pickle.loads(pickle.dumps(refusal))
    assert (str(copy), copy.argument, copy.fix) == ("A: got a; wanted b; c", "A", "c")


SINGLE = """
import warnings
import numpy as np
import gaussflow as gf

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    g = gf.Gaussian([0.0, 1.0], [[2.0, 0.0], [0.0, 1e-30]])
    h = gf.Gaussian(np.zeros(2, np.float32), np.eye(2, dtype=np.float32))
    p = gf.Parameters(A=[[1.0, 2.0], [3.0, 4.0]])
    distance = gf.metrics.bures_wasserstein(h, gf.Gaussian([0.0, 0.0], 4 * np.eye(2)))
kinds = [str(w.category.__name__) for w in seen]
assert kinds == ["PrecisionWarning"], kinds
assert 'jax.config.update("jax_enable_x64", True)' in str(seen[0].message)
assert g.mean.dtype == g.factor.dtype == p.A.dtype == distance.dtype == np.float32
assert g.rank == 2, g.rank
assert abs(float(distance) - 2 ** 0.5) < 1e-6
assert float(gf.metrics.bures_wasserstein(h, h)) == 0.0
assert h.numerical_rank() == 2
try:
    gf.Gaussian([0.0], [[1e60]])
except gf.InvalidInput as refusal:
    assert "single precision can hold" in str(refusal)
else:
    raise SystemExit("1e60 fits no float32")
"""


def test_single_precision_warns_once_and_works():
    done = subprocess.run([sys.executable, "-c", SINGLE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
