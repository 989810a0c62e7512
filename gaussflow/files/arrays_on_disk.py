"""Arrays from files: .npy, .npz, .csv and .txt, each refusal naming the file and what is in it."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from gaussflow.errors import InvalidInput, UnreadableFile

SUFFIXES = (".npy", ".npz", ".csv", ".txt")


def read_array(path: Path, argument: str, *, key: str | None = None, columns: Any = None) -> np.ndarray:
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
        raise InvalidInput(f"{argument}.columns", got=f"columns for {path.name}", wanted="columns only for a .csv table")
    if suffix == ".npz":
        return _from_archive(path, argument, key)
    if suffix == ".npy":
        try:
            return np.load(path, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise UnreadableFile(f"{argument}: {path} is no plain .npy array ({_first_line(error)})") from error
    return read_table(path, argument, columns)


def check_readable(path: Path, argument: str) -> None:
    """Raise :class:`UnreadableFile` unless ``path`` is a non-empty file."""
    if not path.exists():
        near = _similar_name(path)
        raise UnreadableFile(f"{argument}: there is no file {path}" + (f"; did you mean {near}?" if near else ""))
    if path.is_dir():
        raise UnreadableFile(f"{argument}: {path} is a folder; wanted a file")
    if path.stat().st_size == 0:
        raise UnreadableFile(f"{argument}: {path} is empty")


def _from_archive(path: Path, argument: str, key: str | None) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = list(archive.files)
            if key is None and len(names) == 1:
                key = names[0]
            if key is None or key not in names:
                got = "no key" if key is None else f"the key {key!r}"
                raise InvalidInput(
                    f"{argument}.key", got=f"{got} for {path.name}", wanted=f"one of the arrays in it: {', '.join(names)}"
                )
            return archive[key]
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidInput):
            raise
        raise UnreadableFile(f"{argument}: {path} is no .npz archive of plain arrays ({_first_line(error)})") from error


def read_table(path: Path, argument: str, columns: Any = None) -> np.ndarray:
    """The numbers of a comma- (or blank-) separated table, shape (rows, columns).

    A first line that is not numbers all through is a header. Without ``columns`` every column is read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{argument}: {path} is not text in UTF-8") from error
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    separated = [row for row in csv.reader(lines)] if any("," in line for line in lines) else [x.split() for x in lines]
    rows = [[cell.strip() for cell in row] for row in separated]
    if not rows:
        raise UnreadableFile(f"{argument}: {path} holds no numbers")
    header = rows.pop(0) if any(not _is_number(cell) for cell in rows[0]) else None
    if not rows:
        raise UnreadableFile(f"{argument}: {path} holds a header and no numbers")
    chosen = _chosen_columns(columns, header, len(rows[0]), path, argument)
    table = np.empty((len(rows), len(chosen)))
    for i, row in enumerate(rows):
        for j, column in enumerate(chosen):
            cell = row[column] if column < len(row) else ""
            if not _is_number(cell):
                raise InvalidInput(
                    argument,
                    got=f"{cell!r} in row {i + 1}, column {column + 1} of {path.name}",
                    wanted="a number",
                    fix="name the numeric ones with columns = [...]" if columns is None else "",
                )
            table[i, j] = float(cell)
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


def _similar_name(path: Path) -> str | None:
    import difflib

    if not path.parent.is_dir():
        return None
    close = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1, cutoff=0.7)
    return str(path.with_name(close[0])) if close else None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
