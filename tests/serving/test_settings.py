"""Settings refuse what would be unsafe or could not work."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from serving.settings import ServingSettings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_needs_no_key(host: str) -> None:
    assert ServingSettings(host=host).loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.com"])
def test_off_loopback_a_key_is_required(host: str) -> None:
    with pytest.raises(ValidationError, match=r"is not loopback: set serving.api_keys"):
        ServingSettings(host=host)
    assert ServingSettings(host=host, api_keys=("secret",)).api_keys


@pytest.mark.parametrize("key", ["", " padded", "tab\t", "naïve", "line\n"])
def test_keys_that_no_header_can_carry_are_refused_without_being_printed(key: str) -> None:
    with pytest.raises(ValidationError, match=r"api_keys\[1\] must be printable ASCII") as refused:
        ServingSettings(api_keys=("good-secret", key))
    assert "good-secret" not in str(refused.value)


def test_secrets_do_not_print() -> None:
    assert "hunter2" not in repr(ServingSettings(api_keys=("hunter2",)))


@pytest.mark.parametrize(
    "settings", [{"prot": 1}, {"port": 70000}, {"max_k": 0}, {"max_lag_s": 0}, {"workers": 65}, {"mirror_save_s": 0}]
)
def test_unknown_and_out_of_range_settings_are_errors(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ServingSettings(**settings)


def test_every_setting_says_what_it_is_for() -> None:
    assert all(field.description for field in ServingSettings.model_fields.values())
