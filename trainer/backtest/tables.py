"""Columns of a file: CSV of any delimiter, JSON lines, Parquet; the first two also as .gz."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainer.backtest.errors import DataUnusable, Unavailable


def read_columns(
    path: Path,
    names: list[str],
    *,
    delimiter: str | None = None,
    header: bool | None = None,
    optional: Sequence[str] = (),
) -> dict[str, list[Any]]:
    """The named columns, in file order, and those of `optional` that the file has. Raises DataUnusable, Unavailable.

    Of a CSV without a header line the names are places, from 1 on. header None: there is one unless all names are
    numbers. delimiter None: the one among tab, comma, semicolon, bar and "::" that the first line has most of.
    """
    if not path.is_file():
        raise DataUnusable(f"there is no file {path}")
    kinds = [s.lower() for s in path.suffixes if s.lower() != ".gz"]
    if kinds[-1:] == [".parquet"]:
        return _parquet(path, names, optional)
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
        text = raw.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataUnusable(f"{path} can't be read: {error}") from None
    if kinds[-1:] and kinds[-1] in (".jsonl", ".ndjson", ".json"):
        return _json_lines(path, text, names, optional)
    return _csv(path, text, names, delimiter, header, optional)


def _csv(
    path: Path, text: str, names: list[str], delimiter: str | None, header: bool | None, optional: Sequence[str]
) -> dict[str, list[Any]]:
    first = text[: text.find("\n")] if "\n" in text else text
    if delimiter is None:
        delimiter = max(("\t", ",", ";", "|", "::"), key=first.count)
    if len(delimiter) > 1:  # csv knows single characters only
        text, first, delimiter = text.replace(delimiter, "\x1f"), first.replace(delimiter, "\x1f"), "\x1f"
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    if header is None:
        header = not all(name.isdecimal() for name in names)
    if header:
        # "user_id:token" is how RecBole's files name a column
        known = [name.split(":")[0].strip() for name in next(rows, [])]
        if missing := [name for name in names if name not in known]:
            raise DataUnusable(f"{path} has no column {missing[0]!r}: its first line names {', '.join(known)}")
        names = [*names, *(name for name in optional if name in known and name not in names)]
        places = [known.index(name) for name in names]
    else:
        if wrong := [name for name in names if not name.isdecimal() or name == "0"]:
            raise DataUnusable(f"without a header line a column is its place, from 1 on, and not {wrong[0]!r}")
        places = [int(name) - 1 for name in names]
    kept = [row for row in rows if row]
    for i, row in enumerate(kept):
        if len(row) <= max(places):
            raise DataUnusable(f"{path}: row {i + 1} has {len(row)} columns, {max(places) + 1} are needed")
    return {name: [row[place] for row in kept] for name, place in zip(names, places, strict=True)}


def _json_lines(path: Path, text: str, names: list[str], optional: Sequence[str]) -> dict[str, list[Any]]:
    try:
        rows = msgspec.json.Decoder(dict[str, Any]).decode_lines(text)
    except msgspec.DecodeError as error:
        raise DataUnusable(f"{path} is not JSON lines, one object each: {error}") from None
    columns: dict[str, list[Any]] = {}
    for name in names:
        missing = next((i for i, row in enumerate(rows) if name not in row), None)
        if missing is not None:
            raise DataUnusable(f"{path}: line {missing + 1} has no {name!r}")
        columns[name] = [row[name] for row in rows]
    for name in optional:  # beside the other fields, or inside `features` as in a topic
        values = [row.get(name, _inside(row).get(name)) for row in rows]
        if any(value is not None for value in values):
            columns.setdefault(name, values)
    return columns


def _inside(row: dict[str, Any]) -> dict[str, Any]:
    features = row.get("features")
    return features if isinstance(features, dict) else {}


def _parquet(path: Path, names: list[str], optional: Sequence[str]) -> dict[str, list[Any]]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415  an optional package
    except ModuleNotFoundError:
        raise Unavailable("Parquet needs pyarrow: `pip install pyarrow`, or give CSV or JSON lines") from None
    try:
        known = set(parquet.read_schema(path).names)
        names = [*names, *(name for name in optional if name in known and name not in names)]
        table = parquet.read_table(path, columns=names)
    except (ArrowException, OSError) as error:
        raise DataUnusable(f"{path} can't be read: {error}") from None
    if missing := [name for name in names if name not in table.column_names]:
        raise DataUnusable(f"{path} has no column {missing[0]!r}")
    return {name: table[name].to_pylist() for name in names}
