"""Declarations: read, refused with both values, compared, and written as they were read."""

import pytest

from tests.native.redis_module.parsers import PAIRS, Parsers, Refused


@pytest.fixture(scope="module")
def parsers(tmp_path_factory) -> Parsers:
    return Parsers(tmp_path_factory.mktemp("parsers"))


@pytest.fixture(autouse=True)
def _nothing_is_held(parsers):
    yield
    assert parsers.allocator.held == parsers.counting.held == 0


def test_a_declaration_is_read(parsers):
    spec = parsers.of(optimizer="adam", schedule="cosine", steps="500", l2="0.25", seed=str(2**64 - 1), ttl_ms="90")
    assert (spec.kind, spec.dim, spec.seed, spec.ttl_ms) == (0, 64, 2**64 - 1, 90)
    assert (spec.optimizer.kind, spec.optimizer.beta_2, spec.optimizer.epsilon) == (4, 0.999, 1e-7)
    assert (spec.schedule.kind, spec.schedule.steps, spec.schedule.learning_rate) == (2, 500, 0.05)
    assert (spec.l2, spec.max_forgotten, spec.declaration_size) == (0.25, 1 << 20, len(PAIRS["declaration"]))
    parsers.close(spec)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"initial_std": "0.1000000000000000055", "epsilon": "3.3e-38", "initial_accumulator": "0.3", "l1": "1e-300"},
        {"kind": "sequence", "dim": "0", "length": "4096", "optimizer": "add", "declaration": ""},
        {"kind": "record", "dim": "0", "length": "1", "optimizer": "add", "max_rows": str(2**63 - 1)},
        {"kind": "dense", "schedule": "inverse_time", "decay": "0.001", "warmup_steps": "1000000"},
        {"declaration": "x" * 65536},
    ],
)
def test_what_is_written_reads_back_to_the_same(parsers, changed):
    spec = parsers.of(**changed)
    written = parsers.pairs(spec)
    assert [name.decode() for name, _ in written] == list(PAIRS)
    assert dict(written)[b"declaration"].decode() == (PAIRS | changed)["declaration"]
    again = parsers.spec(written)
    parsers.same(spec, again)
    assert parsers.pairs(again) == written
    parsers.close(spec)
    parsers.close(again)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"kind": "hash"}, r"kind 'hash' is none of embedding, dense, sequence, record"),
        ({"dim": "0"}, r"kind embedding needs dim >= 1 and length 0, got dim 0 and length 0"),
        ({"dim": "4097"}, r"dim must be a whole number in \[0, 4096\], got '4097'"),
        ({"dim": "64 "}, r"got '64 '"),
        ({"dim": "-1"}, r"got '-1'"),
        ({"dim": "99999999999999999999999"}, r"got '99999999999999999999999'"),
        ({"dim": ""}, r"got ''"),
        ({"seed": str(2**64)}, r"seed must be a whole number in \[0, 2\^64\), got '18446744073709551616'"),
        ({"seed": "-1"}, r"got '-1'"),
        ({"max_rows": str(2**63)}, r"max_rows must be a whole number in \[0, 2\^63\), got '9223372036854775808'"),
        ({"initial_std": "nan"}, r"initial_std must be a number in \[0, 10\], got 'nan'"),
        ({"initial_std": "inf"}, r"got 'inf'"),
        ({"initial_std": "0x1"}, r"got '0x1'"),
        ({"initial_std": "1e999"}, r"got '1e999'"),
        ({"initial_std": " 1"}, r"got ' 1'"),
        ({"initial_std": "1" * 500}, r"got '1{64}'$"),
        ({"gap_rate": "0"}, r"gap_rate must be a number in .*, got '0'"),
        ({"beta_1": "1"}, r"beta_1 must be a number in \[0, 0.99999999999999989\], got '1'"),
        ({"optimizer": "adamw"}, r"optimizer 'adamw' is none of add, sgd, adagrad, rowwise_adagrad, adam"),
        ({"schedule": "cosine"}, r"cosine needs steps >= 1, got 0"),
        ({"schedule": "inverse_time"}, r"inverse_time needs decay > 0, got 0"),
        ({"learning_rate": "2", "l2": "0.5"}, r"must be below 1, got 2 times 0.5"),
        ({"kind": "sequence", "dim": "0", "length": "9"}, r"its optimizer must be add, got sgd"),
        ({"kind": "dense", "admit_after": "2"}, r"admit_after must be 0 in a table of kind dense, got 2"),
        ({"kind": "dense", "ttl_ms": "2"}, r"ttl_ms and max_rows must be 0 in a table of kind dense, got 2 and 0"),
        ({"declaration": "x" * 65537}, r"declaration of 65537 bytes; at most 65536 are kept"),
        ({"evict_batch": "0"}, r"evict_batch must be a whole number in \[1, 1048576\], got '0'"),
    ],
)
def test_what_is_refused(parsers, changed, sentence):
    with pytest.raises(Refused, match=f"^TOWBAD .*{sentence}"):
        parsers.of(**changed)


def test_names(parsers):
    pairs = [(name.encode(), value.encode()) for name, value in PAIRS.items()]
    with pytest.raises(Refused, match=r"unknown name 'max_row' .* nearest is 'max_rows'"):
        parsers.spec([*pairs, (b"max_row", b"1")])
    with pytest.raises(Refused, match=r"unknown name '\?\?z{62}' .* nearest is"):
        parsers.spec([*pairs, (b"\r\n" + b"z" * 1000, b"1")])
    with pytest.raises(Refused, match=r"unknown name ''"):
        parsers.spec([(b"", b"1")])
    with pytest.raises(Refused, match=r"'dim' comes twice"):
        parsers.spec([*pairs, (b"dim", b"64")])
    for missing in PAIRS:
        with pytest.raises(Refused, match=rf"'{missing}' is missing: a table's declaration has 31 names, got 30"):
            parsers.spec([pair for pair in pairs if pair[0] != missing.encode()])
    with pytest.raises(Refused, match=r"'declaration' is missing"):
        parsers.spec([])


def test_another_declaration_is_told_by_every_value_that_differs(parsers):
    stored = parsers.of()
    given = parsers.of(dim="32", optimizer="adagrad", declaration=PAIRS["declaration"].replace("64", "32"))
    with pytest.raises(Refused) as told:
        parsers.same(stored, given)
    assert str(told.value) == (
        "TOWSPEC stored with another declaration: dim is 64, given 32; optimizer is sgd, given adagrad; declaration at "
        """byte 24 is 'em", "dim": 64}', given 'em", "dim": 32}'"""
    )
    shorter = parsers.of(declaration="")
    with pytest.raises(Refused, match=r"declaration at byte 0 is '\{.*', given ''$"):
        parsers.same(stored, shorter)
    for spec in (stored, given, shorter):
        parsers.close(spec)


def test_without_memory(parsers):
    parsers.counting.left = 0
    with pytest.raises(Refused, match=r"^OOM no memory for a declaration of 27 bytes"):
        parsers.of()
    parsers.counting.left = -1


def test_what_a_release_may_tune_is_no_difference(parsers):
    stored, given = parsers.of(), parsers.of(evict_batch="128", max_evicted="9", max_forgotten="7")
    parsers.same(stored, given)
    for spec in (stored, given):
        parsers.close(spec)
