"""Files, conditions and times as users bring them; what can't be used is named with its place and the remedy."""

import gzip
import json

import numpy as np
import pytest

from embedding_store.model import ModelSettings
from ingest.columns import Partition
from ingest.settings import IngestSettings
from trainer.backtest.condition import Condition
from trainer.backtest.errors import DataUnusable, Unavailable
from trainer.backtest.plot import plot
from trainer.backtest.stream import Stream, read_stream
from trainer.backtest.tables import read_columns
from trainer.backtest.times import to_ms

ROWS = [("u1", 7, 4.0, 1_600_000_000), ("u2", 8, 2.0, 1_600_000_001), ("u1", 9, 5.0, 1_600_000_002)]


def csv_of(delimiter, header=True):
    lines = [delimiter.join(["user", "item", "rating", "ts"])] if header else []
    return "\n".join(lines + [delimiter.join(map(str, row)) for row in ROWS]) + "\n"


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|", "::"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_csv_of_any_delimiter(tmp_path, delimiter, zipped):
    path = tmp_path / ("data.csv.gz" if zipped else "data.csv")
    data = csv_of(delimiter).encode()
    path.write_bytes(gzip.compress(data) if zipped else data)
    columns = read_columns(path, ["item", "user"])
    assert columns == {"item": ["7", "8", "9"], "user": ["u1", "u2", "u1"]}


def test_a_csv_without_a_header_is_read_by_place(tmp_path):
    path = tmp_path / "u.data"
    path.write_text(csv_of("\t", header=False))
    assert read_columns(path, ["1", "2"]) == {"1": ["u1", "u2", "u1"], "2": ["7", "8", "9"]}


def test_types_behind_names_are_left_out(tmp_path):
    path = tmp_path / "ml.inter"
    path.write_text("user_id:token\titem_id:token\n1\t2\n")
    assert read_columns(path, ["user_id", "item_id"]) == {"user_id": ["1"], "item_id": ["2"]}


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson.gz"])
def test_json_lines(tmp_path, suffix):
    path = tmp_path / f"data{suffix}"
    data = "\n".join(json.dumps({"user": u, "item": i}) for u, i, _, _ in ROWS).encode()
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    assert read_columns(path, ["user", "item"]) == {"user": ["u1", "u2", "u1"], "item": [7, 8, 9]}


@pytest.mark.parametrize(
    ("name", "text", "names", "says"),
    [
        ("a.csv", "user,item\nx,1\n", ["user", "thing"], "has no column 'thing': its first line names user, item"),
        ("a.csv", "user,item\nx\n", ["user", "item"], "row 1 has 1 columns, 2 are needed"),
        ("a.csv", "x,1\n", ["1", "3"], "row 1 has 2 columns, 3 are needed"),
        ("a.jsonl", '{"user": 1}\n', ["user", "item"], "line 1 has no 'item'"),
        ("a.jsonl", "user,item\n", ["user"], "is not JSON lines"),
        ("a.csv.gz", "no gzip", ["user"], "can't be read"),
    ],
)
def test_what_a_file_lacks_is_said(tmp_path, name, text, names, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataUnusable, match=says):
        read_columns(tmp_path / name, names)


def test_a_missing_file_and_missing_packages_are_said(tmp_path):
    with pytest.raises(DataUnusable, match="there is no file"):
        read_columns(tmp_path / "nowhere.csv", ["a"])
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises((Unavailable, DataUnusable), match=r"pyarrow|can't be read"):
        read_columns(tmp_path / "a.parquet", ["a"])
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(Unavailable, match="matplotlib"):
            plot([{"event": 1, "model": 0.1}], tmp_path / "a.png")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("label >= 4", [True, False, True]),
        ("rating>4", [False, False, True]),
        ("x != 4.0", [False, True, True]),
        ("y < 1e1", [True, True, True]),
    ],
)
def test_conditions(text, want):
    assert Condition.parse(text).of(["4.0", "2", 5]).tolist() == want


def test_conditions_on_texts_and_bad_ones():
    assert Condition.parse("kind == 'buy'").of(["buy", "view"]).tolist() == [True, False]
    for text in ("label", ">= 4", "label >= good"):
        with pytest.raises(DataUnusable):
            Condition.parse(text)
    with pytest.raises(DataUnusable, match="row 2: label 'x' is no number"):
        Condition.parse("label >= 4").of(["5", "x"])


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        (["1600000000", "1600000000.5"], "auto"),
        ([1_600_000_000_000, 1_600_000_000_500], "auto"),
        ([1_600_000_000_000_000, 1_600_000_000_500_000], "us"),
        ([1_600_000_000_000_000_000, 1_600_000_000_500_000_000], "auto"),
        (["2020-09-13T12:26:40Z", "2020-09-13 12:26:40.500+00:00"], "auto"),
        (["2020-09-13T12:26:40", "2020-09-13T14:26:40.5+02:00"], "iso"),
    ],
)
def test_times_of_any_unit(values, unit):
    assert to_ms(values, unit).tolist() == [1_600_000_000_000, 1_600_000_000_500]


@pytest.mark.parametrize(("values", "says"), [(["1", "x"], "row 2"), (["soon"], "row 1"), (["1", "inf"], "row 2")])
def test_bad_times_name_their_row(values, says):
    with pytest.raises(DataUnusable, match=says):
        to_ms(values)
    with pytest.raises(DataUnusable, match="it is one of"):
        to_ms(values, "weeks")


def test_a_stream_is_ordered_by_time_then_row_and_pairs_count_once(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("user,item,rating,ts\n1,5,5,30\n2,6,4,10\n1,7,1,10\n1,5,4,20\n2,6,5,40\n")
    stream = read_stream(path, user="user", item="item", time="ts", label="rating", positive_if="rating >= 4")
    first = stream.ordered(first_only=True, negatives=False)
    assert list(zip(first.users, first.items, first.time_ms.tolist(), strict=True)) == [
        ("2", "6", 10_000),
        ("1", "5", 20_000),
    ]
    everything = stream.ordered(first_only=False, negatives=True)
    assert everything.items == ["6", "7", "5", "5", "6"]
    assert everything.positive.tolist() == [True, False, True, True, True]
    assert json.loads(everything.records()[1]) == {"user_id": "1", "item_id": "7", "timestamp": 10_000, "label": 0}


def test_integers_stay_integers():
    stream = Stream([1, "a"], [2, "b"], np.array([5, 6]), np.ones(2, bool))
    assert [json.loads(r)["user_id"] for r in stream.records()] == [1, "a"]


@pytest.mark.parametrize("form", ["csv", "jsonl", "nested"])
def test_columns_named_as_declared_features_come_along(tmp_path, form):
    schema = ModelSettings(
        features=[
            {"name": "genre", "of": "item", "kind": "categories"},
            {"name": "age", "of": "user", "kind": "number", "boundaries": [18]},
            {"name": "device", "of": "request", "kind": "category"},
        ]
    ).feature_schema
    rows = [{"genre": ["a", "b"], "age": 31.5}, {"genre": [], "age": None}, {"genre": ["c"], "age": "old"}]
    path = tmp_path / ("events.csv" if form == "csv" else "events.jsonl")
    if form == "csv":
        path.write_text(
            "user_id,item_id,timestamp,genre,age\nu,1,1700000000,a|b,31.5\nu,2,1700000001,,\nu,3,1700000002,c,old\n"
        )
    else:
        lines = [{"user_id": "u", "item_id": n + 1, "timestamp": 1700000000 + n} for n in range(3)]
        lines = [line | ({"features": row} if form == "nested" else row) for line, row in zip(lines, rows, strict=True)]
        path.write_text("\n".join(map(json.dumps, lines)))
    stream = read_stream(
        path, user="user_id", item="item_id", time="timestamp", label=None, positive_if="label > 0", features=schema
    )
    stream = stream.ordered(first_only=True, negatives=False)
    source = stream.source(Partition("backtest", 0), IngestSettings(), schema)
    events = source.poll({}).events
    assert events.features.counts.tolist() == [3, 0]
    ((_, _, reason),) = source.dead  # what is no number is refused as in a topic
    assert "age is 'old'; send a finite number" in reason
    plain = read_stream(path, user="user_id", item="item_id", time="timestamp", label=None, positive_if="label > 0")
    assert plain.features is None
