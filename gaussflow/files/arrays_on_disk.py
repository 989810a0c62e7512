"""Arrays from files: .npy, .npz, .csv and .txt, each refusal naming the file and what is in it."""

from __future__ import annotations

import csv
import difflib
from pathlib import Path
from typing import Any

import numpy as np

from gaussflow.errors import GaussflowError, InvalidInput, UnreadableFile

SUFFIXES = (".npy", ".npz", ".csv", ".txt")


def read_array(path: Path, argument: str, *, key: Any = None, columns: Any = None) -> np.ndarray:
    """The array in ``path``; ``key`` picks one from an .npz, ``columns`` (numbers or header names) some of a table.

    Raises :class:`UnreadableFile` for a file that is missing, empty or damaged, :class:`InvalidInput` for a wrong key
    or column. Pickled objects are never loaded.
    """
    check_readable(path, argument)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInput(argument, got=f"the file {path.name}", wanted=f"a file ending in {', '.join(SUFFIXES)}")
    if key is not None and suffix != ".npz":
        raise InvalidInput(f"{argument}.key", got=f"a key for {path.name}", wanted="no key, except for an .npz archive")
    if columns is not None and suffix not in (".csv", ".txt"):
        raise InvalidInput(
            f"{argument}.columns", got=f"columns for {path.name}", wanted="columns only for a .csv table"
        )
    if suffix in (".csv", ".txt"):
        return read_table(path, argument, columns)
    return _read_binary(path, argument, suffix, key)


def _read_binary(path: Path, argument: str, suffix: str, key: Any) -> np.ndarray:
    try:
        # Opened here, because numpy leaves a file that it cannot read open.
        with open(path, "rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):  # numpy goes by the content, not by the name
                return _from_archive(loaded, path, argument, key)
    except GaussflowError:
        raise
    except Exception as error:  # damaged bytes end in whatever error they run into first
        raise UnreadableFile(f"{argument}: {path} is no plain {suffix} file ({_first_line(error)})") from error
    if key is not None:
        raise InvalidInput(f"{argument}.key", got=f"a key for {path.name}", wanted="no key: it holds a single array")
    return loaded


def check_readable(path: Path, argument: str) -> None:
    """Raise :class:`UnreadableFile` unless ``path`` is a non-empty file."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        near = _similar_name(path)
        hint = f"; did you mean {near}?" if near else ""
        raise UnreadableFile(f"{argument}: there is no file {path}{hint}") from None
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"{argument}: cannot read {path}: {_reason(error)}") from error
    if path.is_dir():
        raise UnreadableFile(f"{argument}: {path} is a folder; wanted a file")
    if size == 0:
        raise UnreadableFile(f"{argument}: {path} is empty")


def read_text(path: Path, argument: str) -> str:
    """The text of a file in UTF-8, with or without a byte-order mark."""
    check_readable(path, argument)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{argument}: {path} is not text in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise UnreadableFile(f"{argument}: cannot read {path}: {_reason(error)}") from error


def _from_archive(archive: Any, path: Path, argument: str, key: Any) -> np.ndarray:
    names = list(archive.files)
    if key is None and len(names) == 1:
        key = names[0]
    if key not in names:
        close = difflib.get_close_matches(str(key), names, n=1)
        raise InvalidInput(
            f"{argument}.key",
            got=f"{'no key' if key is None else f'the key {key!r}'} for {path.name}",
            wanted=f"one of the arrays in it: {', '.join(names) or 'there is none'}",
            fix=f"did you mean {close[0]}?" if close else "",
        )
    try:
        return archive[key]
    except Exception as error:  # as above
        raise UnreadableFile(f"{argument}: cannot read {key!r} from {path} ({_first_line(error)})") from error


def read_table(path: Path, argument: str, columns: Any = None) -> np.ndarray:
    """The numbers of a table, shape (rows, columns), separated by commas, semicolons, tabs or blanks.

    A first line that is not numbers all through is a header; blank lines and lines that begin with # are skipped.
    Without ``columns`` every column is read.
    """
    text = read_text(path, argument)
    numbered = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"]
    separator = next((mark for mark in ",;\t" if numbered and mark in numbered[0][1]), None)
    lines = [line for _, line in numbered]
    try:
        rows = [line.split() for line in lines] if separator is None else list(csv.reader(lines, delimiter=separator))
    except csv.Error as error:
        raise UnreadableFile(f"{argument}: {path} is no table ({error})") from error
    numbers = [i for i, _ in numbered]
    header = None
    if rows and not all(_is_number(cell) for cell in rows[0]):
        header, rows, numbers = [cell.strip() for cell in rows[0]], rows[1:], numbers[1:]
    if not rows:
        raise UnreadableFile(f"{argument}: {path} holds no numbers{' below its header' if header else ''}")
    width = len(rows[0])
    chosen = _chosen_columns(columns, header, width, path, argument)
    table = np.empty((len(rows), len(chosen)))
    for i, row in enumerate(rows):
        where = f"line {numbers[i]} of {path.name}"
        if columns is None and len(row) != width:
            raise InvalidInput(argument, got=f"{len(row)} entries in {where}", wanted=f"{width}, as in the first row")
        for j, column in enumerate(chosen):
            cell = row[column] if column < len(row) else ""
            try:
                table[i, j] = float(cell)
            except ValueError:
                raise InvalidInput(
                    argument,
                    got=f"{cell.strip()[:40]!r} in {where}, column {column}",
                    wanted="a number",
                    fix="pick the numeric columns with columns = [...]" if columns is None else "",
                ) from None
    return table


def _chosen_columns(columns: Any, header: list[str] | None, width: int, path: Path, argument: str) -> list[int]:
    if columns is None:
        return list(range(width))
    if not isinstance(columns, list) or not columns:
        raise InvalidInput(f"{argument}.columns", got=repr(columns), wanted="a list of column numbers or names")
    chosen = []
    for column in columns:
        if isinstance(column, str) and header is not None and column in header:
            chosen.append(header.index(column))
        elif isinstance(column, int) and not isinstance(column, bool) and 0 <= column < width:
            chosen.append(column)
        else:
            names = f", or one of {', '.join(header)}" if header else ""
            raise InvalidInput(
                f"{argument}.columns",
                got=f"{column!r} for {path.name}",
                wanted=f"a number from 0 to {width - 1}{names}",
            )
    return chosen


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _similar_name(path: Path) -> Path | None:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return None  # a hint that cannot be given, nothing more
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return path.with_name(close[0]) if close else None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or _first_line(error)
