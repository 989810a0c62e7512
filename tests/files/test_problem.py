"""Problem files: what they mean, and one line that names file and key for whatever cannot be used."""

import re

import numpy as np
import pytest

import gaussflow as gf
from gaussflow.files.problem import SIMULATE_KEYS

from .bad_files import BAD, GOOD, write_arrays, write_problem


def load(folder, text):
    return gf.load_problem(write_problem(folder, text))


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_files_are_refused_in_one_line(tmp_path, text, message):
    write_arrays(tmp_path)
    path = write_problem(tmp_path, text)
    with pytest.raises(gf.GaussflowError) as caught:
        gf.load_problem(path)
    assert str(path) in str(caught.value)
    assert re.search(message, str(caught.value))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path)) * 2


def test_missing_files_and_folders(tmp_path):
    write_problem(tmp_path, GOOD)
    with pytest.raises(gf.GaussflowError, match=r"there is no file .*problme\.toml; did you mean .*problem\.toml\?$"):
        gf.load_problem(tmp_path / "problme.toml")
    with pytest.raises(gf.GaussflowError, match=r"is a folder; wanted a file"):
        gf.load_problem(tmp_path)
    with pytest.raises(gf.GaussflowError, match=r"there is no file"):
        gf.load_problem(str(tmp_path / "none" / "problem.toml"))
    with pytest.raises(gf.GaussflowError, match=r"cannot read .*: Not a directory"):
        gf.load_problem(tmp_path / "problem.toml" / "problem.toml")


def test_the_file_of_the_design(tmp_path):
    problem = load(
        tmp_path,
        """
        title = "three equilibria"
        [initial]
        covariance = [[1.0, 0.0], [0.0, 1.0]]
        [parameters]
        A = [[10.0, -17.0], [0.0, 8.0]]
        V = [[-10.0, 4.0], [4.0, -2.0]]
        B = 1.0
        [simulate]
        t1 = 5.0
        points = 200
        [target]
        covariance = [[2.0, 0.5], [0.5, 1.0]]
        [classify]
        effort = "full"
        """,
    )
    assert problem.title == "three equilibria"
    assert np.array_equal(problem.initial.mean, [0.0, 0.0])
    assert np.array_equal(problem.initial.covariance, np.eye(2))
    assert np.array_equal(problem.parameters.A, [[10.0, -17.0], [0.0, 8.0]])
    assert problem.parameters.B.shape == ()
    assert problem.simulate == {"t1": 5.0, "points": 200}
    assert np.allclose(problem.target.covariance, [[2.0, 0.5], [0.5, 1.0]], rtol=0, atol=1e-15)
    assert problem.other == {"classify": {"effort": "full"}}
    assert problem.source == tmp_path / "problem.toml"


def test_a_title_is_optional_and_a_byte_order_mark_harmless(tmp_path):
    assert load(tmp_path, b"\xef\xbb\xbf" + GOOD.encode()).title == "problem"


def test_integers_become_floats(tmp_path):
    problem = load(
        tmp_path, "[initial]\nmean = [1, 2]\nfactor = [[1], [3]]\n[parameters]\nA = [[1, 0], [0, 1]]\nV = -1\n"
    )
    assert problem.parameters.A.dtype == problem.initial.factor.dtype == np.float64
    assert problem.parameters.V.shape == ()
    assert np.array_equal(problem.initial.covariance, [[1.0, 3.0], [3.0, 9.0]])


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("[initial]\ncovariance = 2.0\n[parameters]\nb = [0.0, 0.0, 1.0]\n", 3),
        ("[initial]\ncovariance = 2.0\nmean = [1.0, 2.0]\n[parameters]\nA = 1.0\n", 2),
        ("[initial]\ncovariance = 2.0\n[parameters]\nA = 1.0\n[target]\nfactor = [[1.0], [0.0]]\n", 2),
        (
            "[initial]\ncovariance = 2.0\n[[schedule]]\nA = 1.0\nuntil = 1\n[[schedule]]\nV = [[1, 0], [0, 1]]\n",
            2,
        ),
    ],
    ids=["the bias", "the mean", "the target", "a later layer"],
)
def test_whatever_has_a_shape_fixes_the_dimension_of_a_scalar(tmp_path, text, dim):
    problem = load(tmp_path, text)
    assert np.allclose(problem.initial.covariance, 2.0 * np.eye(dim), rtol=1e-15, atol=0)
    assert problem.initial.mean.shape == (dim,)


def test_arrays_come_from_files_beside_the_problem(tmp_path):
    write_arrays(tmp_path)
    problem = load(
        tmp_path,
        """
        [initial]
        samples = "whole.npy"
        [parameters]
        A = { file = "weights.npz", key = "A" }
        B = [{ file = "weights.npz", key = "A" }, [[0, 1], [1, 0]]]
        V = { file = "weights.npz", key = "value" }
        """,
    )
    samples = np.arange(12.0).reshape(6, 2)
    assert np.array_equal(problem.parameters.A, [[1.0, 2.0], [3.0, 4.0]])
    assert np.array_equal(problem.parameters.B, [[[1, 2], [3, 4]], [[0, 1], [1, 0]]])
    assert problem.parameters.heads == 2
    assert np.allclose(problem.initial.mean, samples.mean(axis=0), rtol=1e-15, atol=0)
    assert np.allclose(problem.initial.covariance, np.cov(samples.T), rtol=1e-13, atol=0)
    assert problem.initial.rank == 1


def test_samples_from_a_table_and_a_mean_of_ones_own(tmp_path):
    write_arrays(tmp_path)
    table = 'samples = { file = "word.csv", columns = ["y", 0] }\n[parameters]\nA = 1.0\n'
    problem = load(tmp_path, "[initial]\n" + table)
    assert np.allclose(problem.initial.mean, [3.75, 2.5], rtol=1e-15, atol=0)
    shifted = load(tmp_path, "[initial]\nmean = [0.0, 7.0]\n" + table)
    assert np.array_equal(shifted.initial.mean, [0.0, 7.0])
    assert np.array_equal(shifted.initial.factor, problem.initial.factor)


def test_schedules(tmp_path):
    layers = """
    [initial]
    covariance = 1.0
    [[schedule]]
    A = [[1.0, 0.0], [0.0, 2.0]]
    until = 1
    [[schedule]]
    V = -1.0
    B = 1.0
    """
    schedule = load(tmp_path, layers).parameters
    assert np.array_equal(schedule.edges, [0.0, 1.0, np.inf])
    assert np.array_equal(schedule(0.5).A, [[1.0, 0.0], [0.0, 2.0]])
    assert np.array_equal(schedule(1.5).V, -1.0)
    assert np.array_equal(load(tmp_path, layers + "until = 3.5").parameters.edges, [0.0, 1.0, 3.5])
    # Backward in time the first layer begins where the run ends.
    backward = load(tmp_path, layers + "[simulate]\nt0 = 2.0\nt1 = -1.0")
    assert np.array_equal(backward.parameters.edges, [-1.0, 1.0, np.inf])
    late = load(tmp_path, layers + "[simulate]\nt0 = 0.5\nt1 = 3.0")
    assert np.array_equal(late.parameters.edges, [0.5, 1.0, np.inf])


def test_every_option_reaches_simulate(tmp_path):
    import inspect

    known = inspect.signature(gf.simulate).parameters
    assert set(SIMULATE_KEYS) <= set(known)
    options = 't0 = 1\nt1 = 2\nts = [1, 1.5]\npoints = 3\nmethod = "factor"\nsolver = "tsit5"\nstep = 0.5\n'
    options += "rtol = 1e-6\natol = 0.0\nmax_steps = 100\nerror = true\n"
    found = load(tmp_path, GOOD + "[simulate]\n" + options).simulate
    assert set(found) == set(SIMULATE_KEYS)
    assert np.array_equal(found.pop("ts"), [1.0, 1.5])
    assert found == dict(
        t0=1.0,
        t1=2.0,
        points=3,
        method="factor",
        solver="tsit5",
        step=0.5,
        rtol=1e-6,
        atol=0.0,
        max_steps=100,
        error=True,
    )
