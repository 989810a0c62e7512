"""Problem files that cannot be used, and what must be said about them, through the API and through the command line."""

from pathlib import Path

import numpy as np

INITIAL = "[initial]\ncovariance = [[1.0, 0.0], [0.0, 1.0]]\n"
PARAMETERS = "[parameters]\nA = [[0.1, 0.0], [0.0, 0.2]]\n"
GOOD = INITIAL + PARAMETERS


def initial(*lines: str) -> str:
    return "\n".join(["[initial]", *lines, PARAMETERS])


def parameters(*lines: str) -> str:
    return "\n".join([INITIAL + "[parameters]", *lines, ""])


# name, text of the file, what the message must contain after the name of the file (a regular expression)
BAD = [
    ("empty", "", r"problem\.toml is empty"),
    ("only a comment", "# nothing\n", r"problem file: got no tables; wanted \[initial\] and \[parameters\]"),
    ("not TOML", "[initial\n", r"problem\.toml is not valid TOML: .*line 1"),
    ("a duplicate key", INITIAL + "covariance = 1.0\n", r"is not valid TOML: .*line 3"),
    ("a huge integer", parameters("A = " + "9" * 5000), r"is not valid TOML"),
    ("nested too deeply", "x = " + "[" * 5000, r"is not valid TOML"),
    ("not text", b"\xff\xfe\x00title", r"is not text in UTF-8 \(byte 0\)"),
    # tables and keys
    ("unknown table", GOOD.replace("[initial]", "[intial]"), r"intial: got an unknown key; .*did you mean initial\?"),
    ("unknown key", GOOD.replace("covariance", "covarience"), r"initial\.covarience: .*did you mean covariance\?"),
    ("unknown option", GOOD + "[simulate]\nt_1 = 3.0", r"simulate\.t_1: got an unknown key.*did you mean t1\?"),
    ("unknown parameter", parameters("C = 1.0"), r"parameters\.C: got an unknown key; wanted one of A, B, V, b"),
    ("no initial", PARAMETERS, r"initial: got no such table"),
    ("no parameters", INITIAL, r"parameters: got neither of \[parameters\] and \[\[schedule\]\]; wanted exactly one"),
    ("two kinds of layers", GOOD + "[[schedule]]\nA = 1.0", r"parameters: got both of"),
    ("a number for a table", "initial = 3\n" + PARAMETERS, r"initial: got 3; wanted a table \[initial\]"),
    ("a title that is no text", "title = 3\n" + GOOD, r"title: got 3; wanted text in quotes"),
    # the initial Gaussian
    ("no covariance", initial("mean = [0.0, 0.0]"), r"initial: got none; wanted exactly one of covariance, factor and"),
    (
        "two covariances",
        initial("covariance = 1.0", "factor = 1.0"),
        r"initial: got covariance and factor; wanted exactly",
    ),
    (
        "a ragged covariance",
        initial("covariance = [[1.0, 0.0], [0.0]]"),
        r"initial\.covariance: got rows of different len",
    ),
    ("variances", initial("covariance = [1.0, 2.0]"), r"initial\.covariance: got shape \(2,\); wanted a square matrix"),
    (
        "not symmetric",
        initial("covariance = [[1.0, 0.25], [0.0, 1.0]]"),
        r"initial\.covariance: got a matrix that differs from its transpose by 0\.25 of its largest entry",
    ),
    (
        "indefinite",
        initial("covariance = [[1.0, 2.0], [2.0, 1.0]]"),
        r"initial\.covariance: got an indefinite matrix: its lowest eigenvalue is -1, 0\.333 of the largest",
    ),
    (
        "NaN",
        initial("covariance = [[1.0, 0.0], [0.0, nan]]"),
        r"initial\.covariance: got 1 NaN .*first at index \(1, 1\)",
    ),
    (
        "infinite",
        initial("covariance = 1.0", "mean = [0.0, -inf]"),
        r"initial\.mean: got 1 NaN or infinite entry \(-inf",
    ),
    ("a scalar mean", initial("covariance = 1.0", "mean = 0.0"), r"initial\.mean: got a scalar; wanted a vector"),
    (
        "a long mean",
        initial("covariance = [[1.0]]", "mean = [0.0, 1.0]"),
        r"initial\.covariance: got shape \(1, 1\) beside",
    ),
    (
        "a flat factor",
        initial("factor = [1.0, 2.0]"),
        r"initial\.factor: got shape \(2,\); wanted a matrix of shape \(d",
    ),
    (
        "dimensions",
        initial("covariance = [[1.0]]"),
        r"parameters: got dimension 2; wanted dimension 1, as in \[initial\]",
    ),
    (
        "no dimension",
        "[initial]\ncovariance = 1.0\n[parameters]\nA = 1.0",
        r"initial\.covariance: got a scalar, and noth",
    ),
    ("a flat target", GOOD + "[target]\ncovariance = [[1.0]]", r"target: got dimension 1; wanted dimension 2"),
    ("an empty target", GOOD + "[target]\n", r"target: got none; wanted exactly one"),
    # parameters
    ("text", parameters('A = "1.0"'), r'parameters\.A: got "1\.0"; wanted numbers; take the quotes away'),
    ("a file name", parameters('A = "w.npz"'), r'parameters\.A: .*write \{ file = "w\.npz" \} to read a file'),
    ("a boolean", parameters("A = true"), r"parameters\.A: got true; wanted numbers"),
    ("a boolean inside", parameters("A = [[1.0, false], [0.0, 1.0]]"), r"parameters\.A: got false; wanted numbers"),
    ("a date", parameters("A = 2024-01-01"), r"parameters\.A: got datetime\.date"),
    ("ragged", parameters("A = [[1.0, 2.0], [3.0]]"), r"parameters\.A: got rows of different lengths"),
    (
        "a wide matrix",
        parameters("A = [[1.0, 2.0]]"),
        r"parameters\.A: got shape \(1, 2\); wanted a scalar or a \(d, d\)",
    ),
    ("a vector", parameters("V = [1.0, 2.0]"), r"parameters\.V: got shape \(2,\); .*numpy\.diag"),
    ("a scalar bias", parameters("b = 1.0"), r"parameters\.b: got a scalar; wanted a vector of shape \(d,\)"),
    ("NaN inside", parameters("B = [[nan, 0.0], [0.0, nan]]"), r"parameters\.B: got 2 NaN or infinite entries"),
    (
        "mixed sizes",
        parameters("A = [[1.0]]", "b = [0.0, 1.0]"),
        r"parameters\.b: got shape \(2,\) beside A of dimension 1",
    ),
    (
        "heads",
        parameters("B = [[[1, 0], [0, 1]], [[1, 0], [0, 1]]]", "V = [[[1, 0], [0, 1]]]"),
        r"parameters\.V: got 1 heads beside 2 heads of B; wanted as many heads in B as in V",
    ),
    ("no heads", parameters("B = []"), r"parameters\.B: got shape \(0,\)"),
    # schedules
    (
        "a schedule that is a table",
        INITIAL + "[schedule]\nA = 1.0",
        r"schedule: got .*; wanted a list of \[\[schedule\]\]",
    ),
    ("an empty schedule", "schedule = []\n" + INITIAL, r"schedule: got \[\]; wanted a list"),
    (
        "a schedule without times",
        INITIAL + "[[schedule]]\nA = 1.0\n[[schedule]]\nA = 2.0",
        r"schedule\[0\]\.until: got nothing; wanted the time at which this layer ends",
    ),
    (
        "a schedule out of order",
        INITIAL + "[[schedule]]\nA = 1.0\nuntil = 2.0\n[[schedule]]\nA = 2.0\nuntil = 1.0",
        r"schedule\[1\]\.until: got 1; wanted a time after 2",
    ),
    (
        "a time that is NaN",
        INITIAL + "[[schedule]]\nA = 1.0\nuntil = nan",
        r"schedule\[0\]\.until: got nan; wanted a fin",
    ),
    (
        "a key of a schedule",
        INITIAL + "[[schedule]]\nA = 1.0\nuntl = 1.0",
        r"schedule\[0\]\.untl: .*did you mean until\?",
    ),
    ("a layer", INITIAL + "[[schedule]]\nV = [1.0]", r"schedule\[0\]\.V: got shape \(1,\)"),
    (
        "layers of different sizes",
        INITIAL + "[[schedule]]\nA = [[1.0]]\nuntil = 1.0\n[[schedule]]\nA = [[1.0, 0.0], [0.0, 1.0]]",
        r"schedule: got layers of dimensions \[1, 2\]",
    ),
    # options
    (
        "a time that is text",
        GOOD + '[simulate]\nt1 = "5"',
        r'simulate\.t1: got "5"; wanted a number; take the quotes away',
    ),
    ("infinite time", GOOD + "[simulate]\nt1 = inf", r"simulate\.t1: got inf; wanted a finite number"),
    ("half a point", GOOD + "[simulate]\npoints = 2.5", r"simulate\.points: got 2\.5; wanted a whole number"),
    ("a numeric method", GOOD + "[simulate]\nmethod = 3", r"simulate\.method: got 3; wanted a name in quotes"),
    ("an error that is a number", GOOD + "[simulate]\nerror = 1", r"simulate\.error: got 1; wanted true or false"),
    ("times that are text", GOOD + '[simulate]\nts = ["0"]', r'simulate\.ts: got "0"; wanted numbers'),
    # files
    (
        "no such array",
        parameters('A = { file = "weihgts.npz", key = "A" }'),
        r"parameters\.A: there is no file .*did you mean",
    ),
    (
        "no key",
        parameters('A = { file = "weights.npz" }'),
        r"parameters\.A\.key: got no key for weights\.npz; .*: A, value",
    ),
    (
        "wrong key",
        parameters('A = { file = "weights.npz", key = "values" }'),
        r"parameters\.A\.key: got the key 'values' for weights\.npz; .*: A, value; did you mean value\?",
    ),
    (
        "a key of a key",
        parameters('A = { file = "weights.npz", kye = "A" }'),
        r"parameters\.A\.kye: .*did you mean key\?",
    ),
    (
        "a table without file",
        parameters('A = { key = "A" }'),
        r"parameters\.A\.file: got no file; wanted a name in quotes",
    ),
    (
        "pickled",
        parameters('A = { file = "pickled.npy" }'),
        r"parameters\.A: .*pickled\.npy is no plain \.npy file \(Object",
    ),
    ("garbage", parameters('A = { file = "garbage.npz" }'), r"parameters\.A: .*garbage\.npz is no plain \.npz file"),
    (
        "truncated",
        parameters('A = { file = "truncated.npy" }'),
        r"parameters\.A: .*truncated\.npy is no plain \.npy file",
    ),
    ("pickled inside", parameters('A = { file = "objects.npz", key = "x" }'), r"parameters\.A: cannot read 'x' from"),
    ("complex", parameters('A = { file = "complex.npy" }'), r"parameters\.A: got complex numbers; wanted real numbers"),
    ("words", parameters('A = { file = "words.npy" }'), r"parameters\.A: got entries of type <U3"),
    ("a folder", initial('samples = "."'), r"initial\.samples: .* is a folder; wanted a file"),
    (
        "another kind of file",
        initial('samples = "notes.md"'),
        r"initial\.samples: got the file notes\.md; wanted a file end",
    ),
    (
        "samples without a file",
        initial("samples = 3.0"),
        r"initial\.samples: got a scalar; wanted an array of shape \(n, d\)",
    ),
    ("empty table", initial('samples = "empty.csv"'), r"initial\.samples: .*empty\.csv is empty"),
    (
        "a header alone",
        initial('samples = "header.csv"'),
        r"initial\.samples: .*header\.csv holds no numbers below its",
    ),
    (
        "a word in a table",
        initial('samples = "word.csv"'),
        r"initial\.samples: got 'red' in line 3 of word\.csv, column 2",
    ),
    (
        "a short row",
        initial('samples = "short.csv"'),
        r"initial\.samples: got 1 entries in line 2 of short\.csv; wanted 2",
    ),
    (
        "a column that is not there",
        initial('samples = { file = "word.csv", columns = ["x", "z"] }'),
        r"initial\.samples\.columns: got 'z' for word\.csv; wanted a number from 0 to 2, or one of x, y, colour",
    ),
    (
        "a mean of another length",
        initial("mean = [1.0]", 'samples = { file = "word.csv", columns = ["x", "y"] }'),
        r"initial\.mean: got shape \(1,\) beside samples of dimension 2",
    ),
]


def write_arrays(folder: Path) -> None:
    """The array files that the bad (and some good) problem files name."""
    np.savez(folder / "weights.npz", A=np.array([[1, 2], [3, 4]]), value=-np.eye(2))
    np.save(folder / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(folder / "objects.npz", x=np.array([None]))
    np.save(folder / "complex.npy", np.array([[1j]]))
    np.save(folder / "words.npy", np.array(["one", "two"]))
    np.save(folder / "whole.npy", np.arange(12.0).reshape(6, 2))
    (folder / "truncated.npy").write_bytes((folder / "whole.npy").read_bytes()[:-40])
    (folder / "garbage.npz").write_bytes(b"PK\x03\x04 and nothing that follows")
    (folder / "notes.md").write_text("notes")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("x,y\n")
    (folder / "word.csv").write_text("x,y,colour\n1.0,2.0,3\n4.0,5.5,red\n")
    (folder / "short.csv").write_text("1.0,2.0\n3.0\n")


def write_problem(folder: Path, text: str | bytes) -> Path:
    path = folder / "problem.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
