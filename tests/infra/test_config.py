"""Configuration: every fault is one sentence that names place, fault and remedy; secrets never print."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from embedding_store.settings import RedisSettings
from infra import reference
from infra.config import HANDED, TowlineConfig, hand_over, load
from infra.config_faults import without_password
from infra.errors import ConfigError
from infra.show import as_toml

EXAMPLE = Path(reference.__file__).with_name("towline.example.toml")


def fault(tmp_path: Path, text: str, **environ: str) -> str:
    file = tmp_path / "towline.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environ)
    return str(caught.value)


def test_defaults_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = load(None, {})
    assert source.file is None
    assert source.config.kafka.topic == "events"
    assert source.config.local.state_dir == tmp_path.resolve() / ".towline"


def test_the_file_is_found_by_option_then_variable_then_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("option", "variable", "towline"):
        (tmp_path / f"{name}.toml").write_text(f'[kafka]\ntopic = "{name}"\n')
    monkeypatch.chdir(tmp_path)
    variable = {"TOWLINE_CONFIG": str(tmp_path / "variable.toml")}
    assert load(tmp_path / "option.toml", variable).config.kafka.topic == "option"
    assert load(None, variable).config.kafka.topic == "variable"
    assert load(None, {}).config.kafka.topic == "towline"


def test_the_state_dir_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('[local]\nstate_dir = "here"\n')
    assert load(tmp_path / "t.toml", {}).config.local.state_dir == tmp_path.resolve() / "here"


def test_a_named_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file .*absent\.toml \(named by TOWLINE_CONFIG\)"):
        load(None, {"TOWLINE_CONFIG": str(tmp_path / "absent.toml")})


def test_text_that_is_not_toml(tmp_path: Path) -> None:
    assert "is not TOML" in fault(tmp_path, "[kafka]\ntopic = events\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[kafka]\n\ntopicc = 'x'", "line 3: unknown key 'topicc' in [kafka], did you mean 'topic'?"),
        ("[kafak]\ntopic = 'x'", "line 1: unknown section [kafak], did you mean [kafka]?"),
        ("[ingest]\nshards = 1", "line 2: unknown key 'shards' in [ingest]: it belongs in [model]"),
        ("[zzz]", "unknown section [zzz]: the sections are learning, kafka, ingest"),
        (
            "[model.optimizer]\nkind = 'sgd'\nlerning_rate = 1",
            "line 3: unknown key 'lerning_rate' in [model.optimizer], did you mean 'learning_rate'?",
        ),
        (
            "[model]\noptimizer = {kind = 'ftrl'}",
            'expected a table with kind = "sgd" or "adagrad" or "rowwise_adagrad"',
        ),
        (
            "[model]\noptimizer = {kind = 'adam'}\nregularization = {kind = 'l2', l2 = 0.1, coupled = true}",
            "optimizer 'adam' with coupled regularization 'l2'",
        ),
        (
            "[ingest]\nbatch_events = 0",
            "line 2: [ingest] batch_events = 0 is not usable: expected a whole number ≥ 1 and ≤ 1_000_000",
        ),
        ("[kafka]\nsecurity_protocol = 'TLS'", 'expected one of "PLAINTEXT", "SSL"'),
        ("[model]\nhistory_length = 9\nseen_length = 3", "seen_length 3 is below history_length 9"),
        ("[kafka]\ntopic = ''", 'expected text, not empty; correct it, or remove it for the default "events"'),
    ],
)
def test_a_fault_names_place_neighbour_and_remedy(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in fault(tmp_path, text)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    assert len(fault(tmp_path, "[kafka]\na = 1\n[ingest]\nb = 2\n").splitlines()) == 2


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('[kafka]\ntopic = "file"\n[model]\ndim = 8\n')
    environ = {
        "TOWLINE_KAFKA__TOPIC": "42",  # text that looks like a number stays text
        "TOWLINE_INGEST__BATCH_EVENTS": "7",
        "TOWLINE_REDIS__CLUSTER": "true",
        "TOWLINE_REDIS__SENTINELS": "a:1, b:2",
        "TOWLINE_MODEL__DENSE_LAYERS": "[32, 16]",
        "TOWLINE_MODEL__OPTIMIZER__KIND": "sgd",
        "TOWLINE_MODEL__OPTIMIZER__LEARNING_RATE": "0.5",
        "TOWLINE_REQUIRE_SERVERS": "redis",  # not a setting, not ours to judge
    }
    config = load(file, environ).config
    assert (config.kafka.topic, config.ingest.batch_events, config.redis.cluster) == ("42", 7, True)
    assert config.redis.sentinels == ("a:1", "b:2")
    assert (config.model.dim, config.model.dense_layers) == (8, (32, 16))
    assert config.model.optimizer.model_dump() == {"kind": "sgd", "learning_rate": 0.5}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TOWLINE_KAFKA__TOPIK", "environment variable TOWLINE_KAFKA__TOPIK: unknown key 'topik' in [kafka]"),
        ("TOWLINE_KAFAK__TOPIC", "environment variable TOWLINE_KAFAK__TOPIC: unknown section [kafak]"),
        ("TOWLINE_KAFKA_TOPIC", "two underscores, as in TOWLINE_KAFKA__TOPIC"),
        ("TOWLINE_REDIS", "TOWLINE_REDIS is not a setting: it names a section"),
        ("TOWLINE_CONFG", "TOWLINE_CONFG is not a setting, did you mean TOWLINE_CONFIG?"),
        ("TOWLINE_INGEST__BATCH_EVENTS", 'TOWLINE_INGEST__BATCH_EVENTS: [ingest] batch_events = "x" is not usable'),
    ],
)
def test_a_fault_in_the_environment_names_the_variable(tmp_path: Path, name: str, expected: str) -> None:
    assert expected in fault(tmp_path, "", **{name: "x"})


def test_what_kubernetes_says_of_neighbours_is_no_setting() -> None:
    address = "tcp://10.0.0.1:8000"
    of_a_service = {
        "TOWLINE_SERVING_SERVICE_HOST": "10.0.0.1",
        "TOWLINE_SERVING_SERVICE_PORT": "8000",
        "TOWLINE_SERVING_SERVICE_PORT_HTTP": "8000",
        "TOWLINE_SERVING_PORT": address,
        "TOWLINE_SERVING_PORT_8000_TCP": address,
        "TOWLINE_SERVING_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert load(None, of_a_service).config.serving.port == 8000
    with pytest.raises(ConfigError, match="TOWLINE_SERVING__PORT"):
        load(None, {"TOWLINE_SERVING_PORT": "9000"})


SECRETS: dict[str, Any] = {
    "kafka": {"sasl_password": "hunter2"},
    "redis": {"password": "hunter2", "url": "redis://user:hunter2@host:1/0"},
}


def test_secrets_never_print() -> None:
    config = TowlineConfig.model_validate(SECRETS)
    assert "hunter2" not in repr(config)
    assert "hunter2" not in as_toml(config)
    assert 'password = "***"' in as_toml(config)
    assert 'url = "redis://user:***@host:1/0"' in as_toml(config)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hunter2@host:1/0", "redis://user:***@host:1/0"),
        ("rediss://:hunter@2@host", "rediss://:***@host"),
        ("unix://user:hunter2@/run/redis.sock", "unix://user:***@/run/redis.sock"),
        ("redis://host:1?db=1&password=hunter2", "redis://host:1?db=1&password=***"),
        ("redis://host:1/0", "redis://host:1/0"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_settings_error_shows_no_neighbouring_secret() -> None:
    with pytest.raises(ValidationError) as caught:
        TowlineConfig.model_validate({"redis": {"password": 70707, "timeout_s": -1}})
    assert "70707" not in str(caught.value)
    with pytest.raises(ValidationError) as caught:
        RedisSettings.model_validate({"password": 70707})
    assert "70707" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["[redis]\npassword = [70707]", "[redis]\nurl = 'redis://u:70707@h'\ntimeout_s = -1", "[redis]\npassword = 70707"],
)
def test_secrets_never_print_in_faults(tmp_path: Path, text: str) -> None:
    assert "70707" not in fault(tmp_path, text)


def test_what_is_shown_is_the_configuration_again() -> None:
    shown = tomllib.loads(as_toml(TowlineConfig()))
    assert TowlineConfig.model_validate(shown) == TowlineConfig()


def test_a_child_process_gets_the_whole_configuration_with_its_secrets() -> None:
    config = TowlineConfig.model_validate(SECRETS)
    assert load(None, {HANDED: hand_over(config)}).config == config


def test_the_reference_page_is_up_to_date() -> None:
    assert reference.PATH.read_text(encoding="utf-8") == reference.markdown(), "run: python -m infra.reference"


def test_the_example_loads_as_it_is_and_with_its_comments_taken_away() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert TowlineConfig.model_validate(tomllib.loads(text)) == TowlineConfig(), "as it is, it says the defaults"
    opened = "\n".join(
        line.removeprefix("#") if line.startswith("#") and line[1:2] != " " else line for line in text.splitlines()
    )
    values = tomllib.loads(opened)
    assert set(values) == set(TowlineConfig.model_fields)
    TowlineConfig.model_validate(values)  # so every key in it is known and every value is usable


FEATURES = """
[[model.features]]
name = "genre"
of = "item"
kind = "categories"

[[model.features]]
name = "age"
of = "user"
kind = "number"
boundaries = [18, 25]
"""


def test_features_are_tables_of_a_list_in_file_environment_and_what_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "towline.toml"
    path.write_text(FEATURES)
    model = load(path, {}).config.model
    assert [(f.name, f.of, f.kind, f.boundaries) for f in model.features] == [
        ("genre", "item", "categories", ()), ("age", "user", "number", (18.0, 25.0)),
    ]  # fmt: skip
    path.write_text(as_toml(load(path, {}).config))
    assert load(path, {}).config.model == model
    one = load(None, {"TOWLINE_MODEL__FEATURES": '[{name="x", of="user", kind="category"}]'}).config.model.features
    assert [(f.name, f.of) for f in one] == [("x", "user")]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("boundaries = [18, 25]", "boundaries = [25, 18]"), "boundaries must rise, and 18 comes after 25"),
        (("boundaries = [18, 25]", "bounds = [18, 25]"), "unknown key 'bounds' in [model.features], did you mean"),
        (('of = "user"', 'of = "shop"'), 'expected one of "item", "user", "request"'),
        (('name = "age"', 'name = "genre"'), "feature 'genre' is declared 2 times"),
        (('name = "age"', 'name = "label"'), "a feature can't be named 'label'"),
    ],
)
def test_a_feature_that_can_not_be_is_named_with_the_remedy(
    tmp_path: Path, changed: tuple[str, str], said: str
) -> None:
    path = tmp_path / "towline.toml"
    path.write_text(FEATURES.replace(*changed))
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "wait_ms", "apply_every_ms"),
    [
        ("", 20, 0),
        ("[trainer]\napply_every = 4", 20, 0),
        ("[learning]\nfreshness_target_ms = 40", 10, 0),
        ("[learning]\nfreshness_target_ms = 40\n[trainer]\napply_every = 4", 10, 10),
        ("[learning]\nfreshness_target_ms = 40\n[ingest]\nbatch_wait_ms = 7", 7, 0),
        ("[learning]\nfreshness_target_ms = 40\n[trainer]\napply_every = 4\napply_every_ms = 0", 10, 0),
    ],
)
def test_how_long_events_wait_follows_from_the_target(
    tmp_path: Path, text: str, wait_ms: int, apply_every_ms: int
) -> None:
    file = tmp_path / "towline.toml"
    file.write_text(text)
    config = load(file, {}).config
    assert config.ingest.batch_wait_ms == wait_ms
    assert config.trainer.apply_every_ms == apply_every_ms


def test_a_target_in_the_environment_counts_and_one_out_of_range_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "towline.toml"
    file.write_text("")
    name = "TOWLINE_LEARNING__FRESHNESS_TARGET_MS"
    assert load(file, {name: "16"}).config.ingest.batch_wait_ms == 4
    for bad in ("3", "soon"):
        with pytest.raises(ConfigError, match=name):
            load(file, {name: bad})
