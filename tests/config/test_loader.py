"""File, variables and flags: the later win, and what is wrong is named with all one needs."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.cpus import CPU_MAX
from millstream.config.keys import KEYS, ConfigKey, ConfigKeyType
from millstream.config.loader import Configuration, ConfigurationError, load_configuration
from millstream.config.origins import FromDefault, FromFile, FromFlag, FromVariable, line_of
from millstream.config.schema import (
    LABEL_LENGTH_MAX,
    PORT_MAX,
    Discard,
    Durability,
    Endpoint,
    EventLevel,
    JwtAlgorithm,
    NodeConfig,
    SaslMechanism,
)
from millstream.config.sources import FILE_NAME, FILE_SIZE_MAX
from millstream.config.values import PATH_LENGTH_MAX, parse_value, toml_string, toml_value
from millstream.errors import InvalidConfig

Written = Callable[[str], str]


@pytest.fixture
def file(tmp_path: Path) -> Written:
    """Writes a file, and says where it is."""

    def write(text: str) -> str:
        path = tmp_path / "some.toml"
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    return write


def configured(config: str | None = None, *pairs: str, **variables: str) -> Configuration:
    environment = {f"MILLSTREAM_{name}": value for name, value in variables.items()}
    return load_configuration(environment=environment, config=config, pairs=pairs)


def problems(config: str | None = None, *pairs: str, **variables: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        configured(config, *pairs, **variables)
    assert isinstance(caught.value, InvalidConfig)
    return caught.value.problems


# Who wins.


def test_no_configuration_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    found = configured()
    assert found.node == NodeConfig()
    assert found.origins == {}
    assert found.file is None
    assert all(found.origin(key) == FromDefault() for key in KEYS.values())


def test_the_later_win(file: Written):
    path = file("[topics]\npartitions = 2\nretention_ms = 2\n[node]\nid = 2\n")
    found = load_configuration(
        environment={"MILLSTREAM_TOPICS_PARTITIONS": "3", "MILLSTREAM_TOPICS_RETENTION_MS": "3"},
        config=path,
        flags={"topics.partitions": 4},
    )
    assert found.node.broker.num_partitions == 4
    assert found.node.log.retention_ms == 3
    assert found.node.broker.node_id == 2
    assert found.origin(KEYS["topics.partitions"]) == FromFlag("--partitions")
    assert found.origin(KEYS["topics.retention_ms"]) == FromVariable(
        "MILLSTREAM_TOPICS_RETENTION_MS"
    )
    assert str(found.origin(KEYS["node.id"])) == f"{path}, line 5"


def test_every_part_of_a_node_can_be_set(file: Written):
    node = configured(
        file(
            '[node]\ndata = "d"\ninsecure = true\n'
            '[kafka]\nlisten = "0.0.0.0:1"\nadvertise = "here:2"\nconnections_max = 3\n'
            '[http]\nlisten = "[::1]:4"\nappend_size_max = "1 MiB"\n'
            '[topics]\ndurability = "disk"\ndiscard = "reject"\nauto_create = false\n'
            "retention_bytes = '1 GB'\ndirty_ratio_min = 1\n"
            "[storage]\nsync_threads = 5\n[groups]\nmembers_max = 6\n"
            "[transactions]\ntimeout_ms_max = '7 s'\n[logging]\nlevel = 'error'\n"
        )
    ).node
    assert (node.data, node.is_insecure) == ("d", True)
    assert (node.kafka, node.http) == (Endpoint("0.0.0.0", 1), Endpoint("::1", 4))
    assert node.advertised == Endpoint("here", 2)
    assert (node.kafka_server.connections_max, node.http_server.append_size_max) == (3, 1024**2)
    assert (node.log.durability, node.log.discard) == (Durability.DISK, Discard.REJECT)
    assert (node.log.retention_bytes, node.log.dirty_ratio_min) == (10**9, 1.0)
    assert (node.broker.auto_create_topics, node.broker.group_members_max) == (False, 6)
    assert (node.store.sync_threads, node.broker.transaction_timeout_ms_max) == (5, 7_000)
    assert node.logging.level is EventLevel.ERROR


def test_none_takes_a_limit_away_that_was_set_before(file: Written):
    path = file('[topics]\nretention_ms = "1 d"\n')
    assert configured(path).node.log.retention_ms == 86_400_000
    assert configured(path, TOPICS_RETENTION_MS="none").node.log.retention_ms is None


def test_a_variable_that_is_empty_sets_nothing():
    assert configured(TOPICS_PARTITIONS="", KAFKA="").origins == {}


def test_the_variables_that_were_there_before_go_on_to_be_read():
    found = configured(
        DATA="d", KAFKA="127.0.0.1:1", HTTP="127.0.0.1:2", ADVERTISE="x:3", DURABILITY="memory",
        PARTITIONS="4", AUTO_CREATE="0", INSECURE="1", LOG_LEVEL="debug",
    ).node  # fmt: skip
    assert (found.data, found.kafka.port, found.http.port) == ("d", 1, 2)
    assert (found.advertised, found.log.durability) == (Endpoint("x", 3), Durability.MEMORY)
    assert (found.broker.num_partitions, found.broker.auto_create_topics) == (4, False)
    assert (found.is_insecure, found.logging.level) == (True, EventLevel.DEBUG)


# Which file.


def test_a_file_is_named_by_an_option_then_by_a_variable_then_by_custom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate((FILE_NAME, "b.toml", "c.toml")):
        (tmp_path / name).write_text(f"[node]\nid = {number}\n")
    assert configured().node.broker.node_id == 0
    assert configured(CONFIG="b.toml").node.broker.node_id == 1
    assert configured("c.toml", CONFIG="b.toml").node.broker.node_id == 2
    assert configured().file == FILE_NAME


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path):
    missing = str(tmp_path / "missing.toml")
    assert problems(missing) == (f"cannot read {missing}: No such file or directory",)
    assert problems(CONFIG=missing) == (f"cannot read {missing}: No such file or directory",)
    assert problems(str(tmp_path)) == (f"cannot read {tmp_path}: Is a directory",)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_to_is_warned_about(file: Written, mode: int):
    path = file("")
    os.chmod(path, mode)
    assert configured(path).warnings == (
        f"{path} is writable by users other than its owner (mode {mode:o})",
    )


def test_a_file_that_others_can_read_is_fine(file: Written):
    path = file("")
    os.chmod(path, 0o644)
    assert configured(path).warnings == ()


# What is wrong.


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[kafka]\n\nconnections_max = 0",
            "kafka.connections_max must be between 1 and 1000000, got 0 ({}, line 3)",
        ),
        (
            "kafka.idle_ms_max = '5 m'",
            "kafka.idle_ms_max must be between 100 and 2147483647 ms (or with a unit: ms, s, min,"
            " h, d), got '5 m' ({}, line 1)",
        ),
        (
            "[storage]\nephemeral_bytes_max = 1.5",
            "storage.ephemeral_bytes_max must be between 1024 and 1099511627776 B (or with a"
            " unit: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB), got 1.5 ({}, line 2)",
        ),
        (
            "[topics]\nretention_records = true",
            "topics.retention_records must be between 0 and 9223372036854775807, or none, got"
            " True ({}, line 2)",
        ),
        (
            "[topics]\ndurability = 'FSYNC'",
            "topics.durability must be one of ephemeral, memory, disk, fsync, got 'FSYNC' ({},"
            " line 2)",
        ),
        (
            "[topics]\ndirty_ratio_min = 1.1",
            "topics.dirty_ratio_min must be a number from 0 to 1, got 1.1 ({}, line 2)",
        ),
        (
            "[topics]\nauto_create = 2",
            "topics.auto_create must be true or false, got 2 ({}, line 2)",
        ),
        (
            "[kafka]\nlisten = 9092",
            "kafka.listen must be HOST:PORT with a port from 0 to 65535, got 9092 ({}, line 2)",
        ),
        (
            "[node]\ndata = ''",
            "node.data must be a path of at most 4096 characters, got '' ({}, line 2)",
        ),
        (
            "[node]\nid = 1979-05-27",
            "node.id must be between 0 and 2147483647, got datetime.date(1979, 5, 27) ({}, line 2)",
        ),
        (
            "[kafka]\nconections_max = 1",
            "unknown key kafka.conections_max ({}, line 2); did you mean kafka.connections_max?",
        ),
        (
            "[node]\nfetch_bytes_max = 1",
            "unknown key node.fetch_bytes_max ({}, line 2); did you mean kafka.fetch_bytes_max?",
        ),
        ("[topcis]\npartitions = 1", "unknown key topcis ({}, line 1); did you mean [topics]?"),
        ("[zzzzzz]", "unknown key zzzzzz ({}, line 1)"),
        ("kafka = 1", "unknown key kafka ({}, line 1); did you mean [kafka]?"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named_with_key_value_line_and_what_is_allowed(
    file: Written, text: str, told: str
):
    path = file(text)
    assert problems(path) == (told.format(path),)


def test_everything_that_is_wrong_is_told_at_once(file: Written):
    path = file("[kafka]\nconnections_max = 0\nidle_ms_max = 0\n[nodes]\n")
    found = problems(path, "node.id=x", "topics.partitions", TOPICS_PARTITIONS="0")
    assert len(found) == 6
    assert found[-1] == "--set must be KEY=VALUE, got 'topics.partitions'"


def test_what_is_wrong_in_variables_and_options_is_named_with_where():
    assert problems(KAFKA="x") == (
        "kafka.listen must be HOST:PORT with a port from 0 to 65535, got 'x' (MILLSTREAM_KAFKA)",
    )
    assert problems(None, "node.id=-1") == (
        "node.id must be between 0 and 2147483647, got '-1' (--set)",
    )
    assert problems(None, "node.di=1") == ("unknown key node.di (--set); did you mean node.id?",)


def test_a_variable_that_is_like_one_of_ours_is_an_error():
    assert problems(KAFKA_CONECTIONS_MAX="1") == (
        "unknown variable MILLSTREAM_KAFKA_CONECTIONS_MAX; did you mean"
        " MILLSTREAM_KAFKA_CONNECTIONS_MAX?",
    )
    assert problems(LOGLEVEL="debug") == (
        "unknown variable MILLSTREAM_LOGLEVEL; did you mean MILLSTREAM_LOG_LEVEL?",
    )
    assert problems(KAFKA_XYZZY="1") == ("unknown variable MILLSTREAM_KAFKA_XYZZY",)


def test_a_variable_that_is_like_none_of_ours_is_left_alone_and_warned_about():
    assert configured(LONG="1").warnings == ("MILLSTREAM_LONG is set but not used",)


def test_a_variable_of_another_command_is_none_of_our_business():
    environment = {"MILLSTREAM_SERVER": "http://x"}
    assert load_configuration(environment=environment, others={"MILLSTREAM_SERVER"}).warnings == ()


@pytest.mark.parametrize(
    "name",
    [
        "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_KAFKA", "PORT", "PORT_9092_TCP",
        "PORT_9092_TCP_ADDR", "KAFKA_SERVICE_HOST", "KAFKA_PORT_9092_TCP_PROTO", "KAFKA_PORT",
    ],
)  # fmt: skip
def test_what_kubernetes_says_of_a_service_is_passed_over(name: str):
    found = configured(**{name: "tcp://10.0.0.1:9092"})
    assert (found.origins, found.warnings) == ({}, ())


def test_who_guesses_at_a_port_is_told():
    """Kubernetes has such a variable too, but says a whole address with it."""
    assert problems(KAFKA_PORT="9093") == ("unknown variable MILLSTREAM_KAFKA_PORT",)


def test_one_place_may_not_say_two_things_of_one_key():
    assert problems(KAFKA="127.0.0.1:1", KAFKA_LISTEN="127.0.0.1:2") == (
        "kafka.listen is set twice: '127.0.0.1:1' (MILLSTREAM_KAFKA) and '127.0.0.1:2'"
        " (MILLSTREAM_KAFKA_LISTEN)",
    )
    assert configured(KAFKA="127.0.0.1:1", KAFKA_LISTEN="127.0.0.1:1").node.kafka.port == 1
    assert len(problems(None, "node.id=1", "node.id=2")) == 1


def test_settings_that_do_not_go_together_are_named_by_their_keys(file: Written):
    path = file("[groups]\nsession_timeout_ms_max = 1000\n")
    assert problems(path, "groups.session_timeout_ms_min=2 s") == (
        "groups.session_timeout_ms_min must be at most groups.session_timeout_ms_max, which is"
        f" 1000, got 2000 (--set, {path}, line 2)",
    )
    found = problems(TOPICS_COMPACTION_LAG_MS_MIN="2", TOPICS_COMPACTION_LAG_MS_MAX="1")
    assert found[0].startswith("topics.compaction_lag_ms_min must be at most topics.comp")


def test_who_lets_others_in_has_to_say_so():
    (found,) = problems(KAFKA="0.0.0.0:1")
    assert found.startswith("kafka.listen is 0.0.0.0:1, which other machines can reach")
    assert found.endswith("(MILLSTREAM_KAFKA)")
    assert configured(KAFKA="0.0.0.0:1", INSECURE="true").node.is_insecure


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            b"[node\n",
            "is not valid TOML: Expected ']' at the end of a table declaration (at line 1, col",
        ),
        (
            b"[node]\nid = 1\nid = 2\n",
            "is not valid TOML: Cannot overwrite a value (at line 3, column 7",
        ),
        (b"x = " + b"[" * 5_000, "is not valid TOML: "),
        (b"x = " + b"1" * 5_000, "is not valid TOML: "),
        (b"a\xffb", "is not valid UTF-8 at byte 1"),
        (b"#" * (FILE_SIZE_MAX + 1), f"must have at most {FILE_SIZE_MAX} bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_where(tmp_path: Path, data: bytes, told: str):
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    (found,) = problems(str(path))
    assert found.startswith(f"{path} {told}")


def test_a_wrong_value_is_repeated_only_as_far_as_one_needs_to_find_it():
    (found,) = problems(None, f"node.id={'x' * 100_000}")
    assert len(found) < 300


# Lines.


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("a = 1\nb = 2\n", ("b",), 2),
        ("[t]\n# a = 0\na = 1\n", ("t", "a"), 3),
        ('x = """\na = 1\n"""\na = 2\n', ("a",), 4),
        ("x = [\n1,\n2,\n]\n[t]\na = 1", ("t", "a"), 6),
        ('[t]\na = """\nlong\n"""\nb = 1\n', ("t", "a"), 2),
        ("t.a = 1\nt.b = 2", ("t", "b"), 2),
        ("t = { a = 1 }", ("t", "a"), 1),
        ("[t]\na = 1\n[u]\nb = 2\n", ("t",), 1),
    ],
)
def test_a_key_is_found_on_its_line(text: str, path: tuple[str, ...], line: int):
    assert line_of(text, path) == line


# There and back.


def values_of(key: ConfigKey) -> st.SearchStrategy[Any]:
    match key.kind:
        case ConfigKeyType.RATIO:
            found: st.SearchStrategy[Any] = st.floats(0, 1)
        case ConfigKeyType.SWITCH:
            found = st.booleans()
        case ConfigKeyType.CHOICE:
            found = st.sampled_from(key.choices)
        case ConfigKeyType.ENDPOINT:
            hosts = st.sampled_from(["127.0.0.1", "::1", "localhost"])
            found = st.builds(Endpoint, hosts, st.integers(0, PORT_MAX))
        case ConfigKeyType.PATH:
            text = st.characters(codec="utf-8", exclude_characters="\0")
            found = st.text(text, min_size=1, max_size=PATH_LENGTH_MAX)
            found = found.filter(lambda path: path.strip().lower() != "none")  # It is "./none".
        case ConfigKeyType.URL:
            found = st.sampled_from(["http://127.0.0.1:4318", "https://collector.example/otlp"])
        case ConfigKeyType.LABEL:
            text = st.characters(categories=["L", "N", "P", "S"])
            found = st.text(text, min_size=1, max_size=LABEL_LENGTH_MAX)
            found = found.filter(lambda label: label.lower() != "none")
        case ConfigKeyType.HOSTS:
            found = st.sampled_from([(), ("*",), ("log.example", "::1", "localhost")])
        case ConfigKeyType.ORIGINS:
            found = st.sampled_from([(), ("*",), ("https://app.example", "http://a.example:81")])
        case ConfigKeyType.CLUSTER_NAME:
            found = st.sampled_from(["millstream", "a", "Orders-2.eu_west"])
        case ConfigKeyType.SERVER_URLS:
            found = st.sampled_from([(), ("http://10.0.0.1:2379", "https://[::1]:2379")])
        case ConfigKeyType.CPUS:
            cpus = st.sets(st.integers(0, CPU_MAX), max_size=9)
            found = cpus.map(lambda chosen: tuple(sorted(chosen)))
        case ConfigKeyType.PRINCIPAL_RULES:
            found = st.sampled_from(
                ["DEFAULT", r"RULE:^CN=(.*?),.*$/$1/L, DEFAULT", r"RULE:a\/\\/b/"]
            )
        case ConfigKeyType.USERS:
            found = st.sampled_from([(), ("root",), ("Alice", "CN=ops;O=x")])
        case ConfigKeyType.SERVERS:
            found = st.sampled_from([(), ("idp.example",), ("idp.example:8443", "b.example")])
        case ConfigKeyType.NETWORKS:
            found = st.sampled_from([(), ("10.0.0.0/8", "fd00::/8")])
        case ConfigKeyType.ALGORITHMS:
            found = st.sampled_from([tuple(JwtAlgorithm), (JwtAlgorithm.RS256, JwtAlgorithm.ES256)])
        case ConfigKeyType.MECHANISMS:
            found = st.sampled_from([(), tuple(SaslMechanism), (SaslMechanism.PLAIN,)])
        case _:
            assert key.limits is not None
            found = st.integers(*key.limits)
    return found | st.none() if key.is_optional else found


def made_of(values: Mapping[str, Any]) -> str:
    """The file that `config show --toml` prints, without its remarks."""
    keys = [KEYS[path] for path in KEYS if path in values]
    return "".join(
        f"[{table}]\n" + "".join(f"{k.name} = {toml_value(k, values[k.path])}\n" for k in below)
        for table, below in groupby(keys, key=lambda key: key.table)
    )


@given(st.fixed_dictionaries({}, optional={path: values_of(key) for path, key in KEYS.items()}))
def test_what_is_written_is_read_as_what_it_was(values: dict[str, Any]):
    document = tomllib.loads(made_of(values))
    assert {
        f"{table}.{name}": parse_value(KEYS[f"{table}.{name}"], value)
        for table, below in document.items()
        for name, value in below.items()
    } == values


@pytest.mark.parametrize("written", [["Log.example", "b.example"], "log.example, b.example"])
def test_a_list_is_an_array_of_a_file_or_text_with_commas(written):
    assert parse_value(KEYS["http.allowed_hosts"], written) == ("log.example", "b.example")


@pytest.mark.parametrize("written", [[1], {"a": 1}, "a,,b", ["a b"], 7, True])
def test_what_is_no_list_of_hosts_is_refused(written):
    with pytest.raises(ValueError, match="not"):
        parse_value(KEYS["http.allowed_hosts"], written)


@given(st.text(st.characters(codec="utf-8")))
def test_text_in_a_file_is_the_text_that_was_meant(text: str):
    assert tomllib.loads(f"a = {toml_string(text)}") == {"a": text}
    assert toml_string(text).isprintable()


def test_a_config_never_changes():
    with pytest.raises(dataclasses.FrozenInstanceError):
        configured().file = "x"  # type: ignore[misc]


def test_an_origin_tells_its_place():
    assert FromFile("f", ("a",), "a = 1").place == "f"
    assert str(FromDefault()) == "default"


# The id of a node in a cluster.


@pytest.mark.parametrize(
    ("host_name", "node_id"), [("node-3", 3), ("millstream-0.millstream.svc", 0), ("m12", 12)]
)
def test_a_node_of_a_cluster_takes_its_id_from_the_host_name(host_name: str, node_id: int):
    found = load_configuration(
        environment={"MILLSTREAM_ETCD": "http://127.0.0.1:2379"}, host_name=host_name
    )
    assert found.node.broker.node_id == node_id
    assert str(found.origin(KEYS["node.id"])) == f"host name {host_name}"


def test_an_id_that_is_set_wins_over_the_host_name():
    found = load_configuration(
        environment={"MILLSTREAM_ETCD": "http://127.0.0.1:2379", "MILLSTREAM_NODE_ID": "7"},
        host_name="node-3",
    )
    assert found.node.broker.node_id == 7


def test_a_node_of_a_cluster_without_an_id_is_refused():
    with pytest.raises(ConfigurationError) as refused:
        load_configuration(
            environment={"MILLSTREAM_ETCD": "http://127.0.0.1:2379"}, host_name="laptop"
        )
    assert refused.value.problems == (
        "a node of a cluster needs an id: set --node-id or MILLSTREAM_NODE_ID, or let the host name"
        " end with a number, got 'laptop'",
    )


def test_a_number_of_the_host_name_that_is_no_id_is_refused():
    with pytest.raises(ConfigurationError, match=r"node\.id must be between 0 and 2147483647"):
        load_configuration(
            environment={"MILLSTREAM_ETCD": "http://127.0.0.1:2379"}, host_name="n99999999999"
        )


def test_a_lone_node_does_not_look_at_the_host_name():
    assert load_configuration(environment={}, host_name="laptop").node.broker.node_id == 1
