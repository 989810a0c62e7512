"""The command: answers, refusals in one line, exit statuses, and an untouched results folder where it fails."""

import io
import json
import re
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import gaussflow as gf
import gaussflow.cli as cli

from .files.bad_files import BAD, GOOD, write_arrays, write_problem
from .systems.hand_made import failing, shrinking

# The closed form compiles fastest.
SMALL = """
title = "small"
[initial]
mean = [1.0, 0.0]
covariance = [[1.0, 0.0], [0.0, 2.0]]
[parameters]
A = [[1.0, 0.0], [0.0, 0.5]]
B = 1.0
V = -1.0
[simulate]
t1 = 2.0
points = 5
"""


@pytest.fixture
def command(capsys):
    """Run the command in this process: exit status, standard output, standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


def refused(answer, message):
    """Exit status 2, nothing on standard output, one line on standard error."""
    code, out, err = answer
    assert code == 2
    assert out == ""
    assert err.startswith("gaussflow: ")
    assert err.count("\n") == 1
    assert re.search(message, err)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def results(tmp_path):
    """A results folder of an earlier run."""
    folder = tmp_path / "results"
    folder.mkdir()
    for name in ("summary.json", "trajectory.npz", "trajectory.png"):
        (folder / name).write_text(f"an earlier {name}")
    return folder


def test_help_is_fast_and_needs_no_numerics():
    program = "import sys, gaussflow.cli as cli\ntry:\n    cli.main(['--help'])\n"
    program += "finally:\n    print(sorted({'jax', 'numpy', 'matplotlib', 'rich'} & set(sys.modules)))"
    best = np.inf
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time, which on an idle machine is the time it takes.
        best = min(best, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert "simulate" in done.stdout
    assert done.stdout.endswith("[]\n")
    assert 0.0 < best < 0.5


def test_version_and_help(command):
    assert command("--version") == (0, f"gaussflow {gf.__version__}\n", "")
    code, out, _ = command("simulate", "--help")
    assert code == 0
    assert "Example: gaussflow simulate" in out
    for option in ("--out", "--plot", "--json", "--t1", "--points", "--method", "--rtol", "--error"):
        assert option in out


@pytest.mark.parametrize(
    "arguments", [["simulate"], ["simulate", "x.toml", "--t1", "soon"], ["simulte"], ["simulate", "x", "-q"]]
)
def test_misuse_is_said_without_a_traceback(command, arguments):
    code, out, err = command(*arguments)
    assert code == 2
    assert out == ""
    assert "Usage: gaussflow" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_files_are_refused_and_leave_results_alone(command, tmp_path, results, text, message):
    write_arrays(tmp_path)
    path, before = write_problem(tmp_path, text), contents(results)
    refused(command("simulate", path, "--out", results, "--plot", "--json"), message)
    assert contents(results) == before


@pytest.mark.parametrize(
    ("options", "lines", "message"),
    [
        (["--points", "0"], "", r"gaussflow: --points: got 0; wanted a positive integer"),
        (["--t1", "nan"], "", r"gaussflow: --t1: got 1 NaN or infinite entry"),
        (["--method", "magic"], "", r"gaussflow: --method: got 'magic'; wanted one of auto"),
        (["--method", "exact"], "", r"gaussflow: --method: got 'exact' with V that is no multiple"),
        (["--rtol", "0"], "", r"gaussflow: --rtol: got 0; wanted a positive tolerance"),
        (["--rtol", "1e-20"], "", r"gaussflow: --rtol: got 1e-20; wanted at least"),
        ([], "points = 0", r"problem\.toml: simulate\.points: got 0; wanted a positive integer"),
        ([], "rtol = -1.0", r"problem\.toml: simulate\.rtol: got -1; wanted a positive tolerance"),
        ([], 'method = "magic"', r"problem\.toml: simulate\.method: got 'magic'"),
        ([], "ts = [0.0, 2.0, 1.0]", r"problem\.toml: simulate\.ts: got unsorted save times"),
        ([], "ts = [0.0, 9.0]", r"problem\.toml: simulate\.ts: got 1 times outside the run"),
        ([], "ts = [[0.0]]", r"problem\.toml: simulate\.ts: got shape \(1, 1\)"),
        ([], "step = -0.1", r"problem\.toml: simulate\.step: got -0\.1"),
        ([], "max_steps = 0", r"problem\.toml: simulate\.max_steps: got 0"),
    ],
)
def test_bad_options_name_the_option_or_the_key(command, tmp_path, results, options, lines, message):
    text = GOOD + "V = [[1.0, 1.0], [0.0, 1.0]]\n[simulate]\n" + lines
    path, before = write_problem(tmp_path, text), contents(results)
    refused(command("simulate", path, "--out", results, *options), message)
    assert contents(results) == before


def test_missing_files(command, tmp_path):
    refused(command("simulate", tmp_path / "none.toml"), r"problem file: there is no file .*none\.toml")
    refused(command("simulate", tmp_path), r"problem file: .* is a folder")


def test_a_schedule_that_is_too_short(command, tmp_path):
    text = "[initial]\ncovariance = [[1.0]]\n[[schedule]]\nA = 1.0\nuntil = 1.0\n"
    message = r"problem\.toml: t1: got 5; wanted a time inside the schedule, which runs from 0 to 1"
    refused(command("simulate", write_problem(tmp_path, text)), message)


def test_a_folder_that_cannot_be_written_to(command, tmp_path):
    (tmp_path / "taken").write_text("mine")
    path = write_problem(tmp_path, SMALL)
    refused(command("simulate", path, "--out", tmp_path / "taken"), r"--out: cannot write to .*taken: File exists")
    assert (tmp_path / "taken").read_text() == "mine"


def test_the_table_and_its_options(command, tmp_path, monkeypatch):
    path = write_problem(tmp_path, SMALL)
    code, out, err = command("simulate", path, "--error")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "small"
    rows = {line[2:16].strip(): line[16:] for line in lines[1:]}
    assert rows["dimension"] == "2, rank 2"
    assert rows["time"] == "0 to 2, 5 points"
    assert rows["outcome"] == "completed"
    assert rows["method"].startswith("exact")
    assert re.fullmatch(r"about \S+e-\d\d relative", rows["error"])
    # d = 1 in each coordinate: 1/s = e^(-2at)/s0 + (1 - e^(-2at))/a
    decay = np.exp(-2 * np.array([1.0, 0.5]) * 2.0)
    expected = 1 / (decay / np.array([1.0, 2.0]) + (1 - decay) / np.array([1.0, 0.5]))
    assert rows["eigenvalues"] == "  ".join(f"{value:.5g}" for value in expected)
    assert rows["trace"] == f"3 to {expected.sum():.6g}"
    assert rows["log det"] == f"changed by {np.log(expected.prod() / 2.0):.6g}"
    assert list(tmp_path.iterdir()) == [path]

    monkeypatch.chdir(tmp_path)
    code, out, _ = command("simulate", "problem.toml", "--plot", "--t1", "1.0", "--json")
    assert code == 0
    summary = json.loads(out, parse_constant=pytest.fail)
    assert summary["asked"] == {"t1": 1.0, "points": 5}
    assert summary["t_last"] == 1.0
    assert set(contents(tmp_path / "results")) == {"summary.json", "trajectory.npz", "trajectory.png", "trajectory.pdf"}


@pytest.fixture
def asked(monkeypatch):
    """Put a trajectory made by hand in the place of the integration; returns the options it is asked with."""
    import gaussflow.flow.simulate as simulate

    options = {}

    def stand_in(parameters, gaussian, **given):
        options.update(given)
        failed = given.get("max_steps") == 3
        states = shrinking(2)
        return failing(states) if failed else states

    monkeypatch.setattr(simulate, "simulate", stand_in)
    return options


def test_options_replace_those_of_the_file(command, tmp_path, asked):
    path = write_problem(tmp_path, SMALL + "rtol = 1e-6\nerror = true\n")
    assert command("simulate", path, "--method", "factor", "--rtol", "1e-9", "--points", "7")[0] == 0
    assert asked == dict(t1=2.0, points=7, method="factor", rtol=1e-9, error=True)


def test_save_times_of_the_file_give_way_to_another_interval(command, tmp_path, asked):
    path = write_problem(tmp_path, SMALL.replace("points = 5", "ts = [0.0, 2.0]"))
    assert command("simulate", path)[0] == 0
    assert np.array_equal(asked.pop("ts"), [0.0, 2.0])
    assert command("simulate", path, "--t1", "1.0")[0] == 0
    assert asked == dict(t1=1.0)


def test_a_failed_integration_says_why_and_exits_with_one(command, tmp_path, asked):
    path = write_problem(tmp_path, SMALL + "max_steps = 3\n")
    code, out, err = command("simulate", path)
    assert (code, err) == (1, "")
    assert "  outcome       failed\n  cause         ran out of steps (max_steps)\n" in out
    code, out, _ = command("simulate", path, "--json")
    assert code == 1
    assert json.loads(out)["cause"] == "ran out of steps (max_steps)"


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (KeyboardInterrupt(), 130, "gaussflow: interrupted\n"),
        (MemoryError(), 2, "gaussflow: out of memory; a factor of low rank, or fewer points, needs less\n"),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8000000000000 bytes."),
            2,
            "gaussflow: out of memory; a factor of low rank, or fewer points, needs less\n",
        ),
    ],
)
def test_an_interrupted_run_leaves_results_alone(command, tmp_path, results, monkeypatch, error, status, text):
    import gaussflow.flow.simulate as simulate

    def stopped(*arguments, **options):
        raise error

    monkeypatch.setattr(simulate, "simulate", stopped)
    before = contents(results)
    assert command("simulate", write_problem(tmp_path, SMALL), "--out", results) == (status, "", text)
    assert contents(results) == before


def test_control_c_ends_compiled_code_at_once(tmp_path, results):
    # sleep() after an empty handler goes on, like compiled code.
    program = """if True:
        import sys, time
        import gaussflow.cli as cli
        import gaussflow.flow.simulate as module
        def busy(*arguments, **options):
            print("busy", flush=True)
            time.sleep(60)
        module.simulate = busy
        cli.main(sys.argv[1:])
    """
    path, before = write_problem(tmp_path, SMALL), contents(results)
    arguments = [sys.executable, "-c", program, "simulate", str(path), "--out", str(results)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "busy\n"
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert time.monotonic() - started < 20.0
    assert (process.returncode, out, err) == (130, "", "gaussflow: interrupted\n")
    assert contents(results) == before


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_for_terminals(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(cli, "SILENT_SECONDS", 0.1)
    with cli._progress("loading") as say:
        say("integrating")
        time.sleep(0.7)
    shown = terminal.getvalue()
    assert "integrating ... 0 s" in shown
    assert "\n" not in shown
    assert shown.endswith("\r\x1b[K")  # the line is cleared at the end
    monkeypatch.setattr(cli, "SILENT_SECONDS", 60.0)
    terminal.truncate(0)
    with cli._progress("loading"):
        time.sleep(0.3)
    assert terminal.getvalue().strip("\0") == ""
