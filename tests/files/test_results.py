"""Results on disk: whole or not at all, strict JSON, arrays that say what they are."""

import json

import numpy as np
import pytest

import gaussflow as gf
from gaussflow.files import results
from gaussflow.files.results import prepare_folder, to_json, trajectory_arrays, write_files, write_results

from ..systems.hand_made import growing, shrinking


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_trajectory_comes_back_as_it_was(tmp_path):
    t = growing(3)
    written = write_results(tmp_path / "new" / "folder", summary={"title": "x"}, trajectory=t)
    folder = tmp_path / "new" / "folder"
    assert written == ["summary.json", "trajectory.npz"] == names(folder)
    assert json.loads((folder / "summary.json").read_text()) == {"title": "x", "files": written}
    with np.load(folder / "trajectory.npz", allow_pickle=False) as saved:
        assert np.array_equal(saved["ts"], t.ts)
        assert np.array_equal(saved["means"], t.means)
        assert np.array_equal(saved["covariances"], t.covariances)
        assert (str(saved["outcome"]), float(saved["blow_up_time"])) == ("blow-up", 1.0)
        assert np.array_equal(np.abs(saved["blow_up_directions"]), [[1.0], [0.0], [0.0]])
        description = str(saved["description"])
        assert "arXiv 2606.07600" in description
        for name in saved.files:
            assert name == "description" or f"\n{name}: " in description
    assert (folder / "trajectory.npz").stat().st_mode & 0o444 == 0o444


def test_large_dimensions_are_saved_as_factors_alone(monkeypatch):
    t = shrinking(4, 2)
    assert {"factors", "covariances"} <= set(trajectory_arrays(t))
    monkeypatch.setattr(results, "DENSE_LIMIT", 30 * 4 * 4 - 1)
    assert "covariances" not in trajectory_arrays(t)
    assert np.array_equal(trajectory_arrays(t)["factors"], t.saved_factors)
    assert "factors" not in trajectory_arrays(shrinking(4))


def test_json_is_strict_and_takes_arrays():
    content = {"a": np.float64("nan"), "b": [np.inf, 1.5], "c": np.arange(2), "d": np.bool_(True), 3: None, "e": "é"}
    text = to_json(content)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": None, "b": [None, 1.5], "c": [0, 1], "d": True, "3": None, "e": "é"
    }  # fmt: skip


def fails(path):
    path.write_text("half a fi")
    raise OSError(28, "No space left on device")


def interrupted(path):
    path.write_text("half a fi")
    raise KeyboardInterrupt


def test_a_failing_run_leaves_the_folder_as_it_was(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(gf.GaussflowError, match=r"^cannot write .*b\.txt: No space left on device$"):
        write_files(tmp_path, {"a.txt": lambda path: path.write_text("new"), "b.txt": fails})
    with pytest.raises(KeyboardInterrupt):
        write_files(tmp_path, {"a.txt": lambda path: path.write_text("new"), "b.txt": interrupted})
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"
    write_files(tmp_path, {"a.txt": lambda path: path.write_text("new")})
    assert (tmp_path / "a.txt").read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_a_full_disk(tmp_path):
    import resource

    write_results(tmp_path, summary={"run": 1}, trajectory=shrinking())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))  # files end there as on a full disk
    try:
        with pytest.raises(gf.GaussflowError, match=r"^cannot write .*trajectory\.npz: File too large$"):
            write_results(tmp_path, summary={"run": 2}, trajectory=shrinking(6))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "taken").write_text("mine")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(gf.GaussflowError, match=r"^--out: cannot write to .*taken"):
            prepare_folder(folder)
    assert (tmp_path / "taken").read_text() == "mine"
