"""A setting is checked once, and a wrong one is named together with what is allowed."""

from __future__ import annotations

import dataclasses

import pytest

from millstream.config import (
    Durability,
    LogConfig,
    StoreConfig,
    durability_named,
    settings_of,
)
from millstream.errors import InvalidConfig

LIMITS = [
    pytest.param(config, name, least, most, id=f"{config.__name__}.{name}")
    for config in (LogConfig, StoreConfig)
    for name, (least, most) in config._limits.items()
]

NO_WHOLE_NUMBER = [None, "1024", 1024.0, float("nan"), True, [1024], Durability.FSYNC]


@pytest.mark.parametrize("config", [LogConfig, StoreConfig])
def test_every_whole_number_has_limits(config):
    numbers = {field.name for field in dataclasses.fields(config) if field.type == "int"}
    assert numbers == set(config._limits)
    assert numbers == {field.name for field in dataclasses.fields(config)} - {"durability"}


@pytest.mark.parametrize(("config", "name", "least", "most"), LIMITS)
def test_a_number_may_be_as_small_and_as_large_as_its_limits(config, name, least, most):
    assert getattr(config(**{name: least}), name) == least
    assert getattr(config(**{name: most}), name) == most


@pytest.mark.parametrize(("config", "name", "least", "most"), LIMITS)
def test_a_number_outside_its_limits_is_refused_with_key_value_and_range(config, name, least, most):
    for value in (least - 1, most + 1, -(2**70), 2**70):
        with pytest.raises(InvalidConfig) as caught:
            config(**{name: value})
        assert str(caught.value) == f"{name} is {value}, allowed is {least} to {most}"


@pytest.mark.parametrize("value", NO_WHOLE_NUMBER, ids=repr)
@pytest.mark.parametrize(("config", "name", "least", "most"), LIMITS)
def test_what_is_no_whole_number_is_refused_with_key_and_value(config, name, least, most, value):
    with pytest.raises(InvalidConfig) as caught:
        config(**{name: value})
    assert str(caught.value) == f"{name} is {value!r}, a whole number is needed"


@pytest.mark.parametrize("value", ["fsync", "FSYNC", None, 1, True], ids=repr)
def test_a_durability_that_is_none_is_refused_with_all_that_are(value):
    with pytest.raises(InvalidConfig) as caught:
        LogConfig(durability=value)
    assert str(caught.value) == (
        f"durability is {value!r}, allowed is ephemeral, memory, disk, fsync"
    )


@pytest.mark.parametrize("kind", Durability)
def test_a_durability_is_found_by_its_name(kind):
    assert durability_named(kind.value) is kind


@pytest.mark.parametrize("name", ["", "FSYNC", "sync", " fsync", "fsync\n", None], ids=repr)
def test_an_unknown_durability_is_refused_with_all_that_are_known(name):
    with pytest.raises(InvalidConfig) as caught:
        durability_named(name)
    assert str(caught.value) == (
        f"durability is {name!r}, allowed is ephemeral, memory, disk, fsync"
    )


@pytest.mark.parametrize("config", [LogConfig, StoreConfig])
def test_the_defaults_are_within_their_limits(config):
    default = config()
    for name, (least, most) in config._limits.items():
        assert least <= getattr(default, name) <= most


def test_the_default_loses_no_data():
    assert LogConfig().durability is Durability.FSYNC


@pytest.mark.parametrize("config", [LogConfig, StoreConfig])
def test_a_config_never_changes(config):
    name = next(iter(config._limits))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config(), name, 1)


@pytest.mark.parametrize("config", [LogConfig, StoreConfig])
def test_a_changed_copy_is_checked_too(config):
    name = next(iter(config._limits))
    with pytest.raises(InvalidConfig, match=name):
        dataclasses.replace(config(), **{name: -1})


@pytest.mark.parametrize("config", [LogConfig, StoreConfig])
def test_a_config_takes_its_settings_by_name_only(config):
    with pytest.raises(TypeError):
        config(1024)
    with pytest.raises(TypeError, match="no_such_setting"):
        config(no_such_setting=1)


@pytest.mark.parametrize("config", [LogConfig, StoreConfig])
def test_settings_come_out_as_plain_values(config):
    settings = settings_of(config())
    assert list(settings) == [field.name for field in dataclasses.fields(config)]
    assert {type(value) for value in settings.values()} <= {int, str}


def test_settings_name_the_durability_as_it_is_written():
    assert settings_of(LogConfig(durability=Durability.DISK))["durability"] == "disk"
