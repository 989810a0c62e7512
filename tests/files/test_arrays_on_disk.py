"""Tables and array files."""

from pathlib import Path

import numpy as np
import pytest

import gaussflow as gf
from gaussflow.files.arrays_on_disk import read_array

IRIS = Path(__file__).parents[2] / "examples" / "iris.csv"


def test_the_iris_table_has_a_header_that_is_almost_numbers():
    table = read_array(IRIS, "samples", columns=[0, 1, 2, 3])
    assert table.shape == (150, 4)
    assert np.array_equal(table[0], [5.1, 3.5, 1.4, 0.2])
    assert np.array_equal(table[-1], [5.9, 3.0, 5.1, 1.8])
    # The sums of the four columns, as printed with the data set since 1936.
    assert np.allclose(table.mean(axis=0), [876.5 / 150, 458.6 / 150, 563.7 / 150, 179.9 / 150], rtol=1e-14, atol=0)
    assert np.array_equal(np.bincount(read_array(IRIS, "samples")[:, 4].astype(int)), [50, 50, 50])


@pytest.mark.parametrize(
    "text",
    ["1,2\n3,4.5\n", "x,y\n1,2\n3,4.5", "# note, with a comma\n\n1;2\n3;4.5\n", "1\t2\n3\t4.5\n", " 1  2\n 3  4.5\n",
     '"a","b"\n"1","2"\n3, 4.5\n'],
    ids=["plain", "header", "semicolons and a comment", "tabs", "blanks", "quotes"],
)  # fmt: skip
def test_tables(tmp_path, text):
    (tmp_path / "table.csv").write_text(text)
    assert np.array_equal(read_array(tmp_path / "table.csv", "samples"), [[1.0, 2.0], [3.0, 4.5]])


def test_the_content_counts_not_the_name(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(2))
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    assert np.array_equal(read_array(tmp_path / "x.npz", "A"), np.eye(2))
    with pytest.raises(gf.InvalidInput, match=r"^A\.key: got a key for x\.npz; wanted no key"):
        read_array(tmp_path / "x.npz", "A", key="x")
    np.savez(tmp_path / "y.npz", only=np.ones(3))
    assert np.array_equal(read_array(tmp_path / "y.npz", "A"), np.ones(3))
    (tmp_path / "y.npz").rename(tmp_path / "y.npy")
    assert np.array_equal(read_array(tmp_path / "y.npy", "A"), np.ones(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(key="x"), r"^A\.key: got a key for t\.csv; wanted no key, except for an \.npz"),
        (dict(columns=[2]), r"^A\.columns: got 2 for t\.csv; wanted a number from 0 to 1$"),
        (dict(columns=[-1]), r"^A\.columns: got -1"),
        (dict(columns=[True]), r"^A\.columns: got True"),
        (dict(columns=[]), r"^A\.columns: got \[\]; wanted a list of column numbers or names"),
        (dict(columns=0), r"^A\.columns: got 0; wanted a list"),
    ],
)
def test_wrong_choices(tmp_path, options, message):
    (tmp_path / "t.csv").write_text("1,2\n")
    with pytest.raises(gf.InvalidInput, match=message):
        read_array(tmp_path / "t.csv", "A", **options)


def test_columns_are_for_tables(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(2))
    with pytest.raises(gf.InvalidInput, match=r"^A\.columns: got columns for x\.npy"):
        read_array(tmp_path / "x.npy", "A", columns=[0])


def test_a_damaged_archive(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(1000.0))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[200:260] = b"\0" * 60
    (tmp_path / "x.npz").write_bytes(bytes(content))
    with pytest.raises(gf.GaussflowError, match=r"^A: cannot read 'x' from .*x\.npz"):
        read_array(tmp_path / "x.npz", "A", key="x")
