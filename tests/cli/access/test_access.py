"""`millstream access`: from the first token to the refusal of a revoked one."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner

from millstream import AsyncClient, Client, ClientConfig
from millstream.cli.main import main
from millstream.clients.http.core.token import token_of
from millstream.config.schema import AccessConfig
from millstream.errors import InvalidConfig, NotAuthenticated, TopicAccessDenied, UnknownTopic
from millstream.testing.broker import running_broker


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv("MILLSTREAM_TOKEN", raising=False)
    monkeypatch.delenv("MILLSTREAM_TOKEN_FILE", raising=False)


@pytest.fixture
def site(tmp_path):
    """A node with logins, the file with the token of its administrator, and its commands."""
    data = tmp_path / "data"
    made = CliRunner().invoke(main, ["access", "init", "--data", str(data)])
    assert made.exit_code == 0, made.output
    admin = tmp_path / "admin.token"
    admin.write_text(made.stdout)
    with running_broker(data, access=AccessConfig(enabled=True)) as node:
        yield Site(node, admin, tmp_path)


class Site:
    def __init__(self, node, admin, path):
        self.node = node
        self.admin = admin
        self.path = path

    def run(self, *words, token=None, status=0, **environment):
        token = self.admin if token is None else token
        options = ["--server", self.node.url]
        options += ["--token-file", str(token)] if token else []
        done = CliRunner(env=environment).invoke(main, [*words, *options])
        assert done.exit_code == status, done.output
        return done

    def token(self, user, *options):
        file = self.path / f"{user}.token"
        file.write_text(self.run("access", "tokens", "create", user, *options).stdout)
        return file


def test_the_first_token_is_that_of_an_administrator(site):
    assert "User:admin" in site.run("access", "whoami").stdout
    assert "created orders" in site.run("topic", "create", "orders").stdout
    assert "User:ANONYMOUS" in site.run("access", "whoami", token="").stdout
    refused = site.run("topic", "create", "other", token="", status=1)
    assert "this needs a login" in refused.stderr


def test_init_can_be_repeated_and_leaves_the_first_token_valid(tmp_path):
    words = ["access", "init", "--data", str(tmp_path / "data"), "--json"]
    first, second = (json.loads(CliRunner().invoke(main, words).stdout) for _ in range(2))
    assert first["token"] != second["token"]
    with running_broker(tmp_path / "data", access=AccessConfig(enabled=True)) as node:
        for made in (first, second):
            with Client(node.url, config=ClientConfig(token=made["token"])) as client:
                assert list(client.topics()) == []


def test_init_needs_a_node_that_is_stopped(site):
    done = CliRunner().invoke(main, ["access", "init", "--data", site.node.data])
    assert done.exit_code == 1
    assert "ms_" not in done.output


def test_a_user_may_do_what_rules_allow_until_they_are_removed(site):
    site.run("topic", "create", "orders")
    alice = site.token("alice")
    assert "There are no topics" in site.run("topic", "list", token=alice).output
    allowed = site.run("access", "acls", "allow", "alice", "read", "--topic", "ord", "--prefixed")
    assert allowed.stdout == "alice may read topic ord*\n"
    assert "orders" in site.run("topic", "list", token=alice).stdout
    refused = site.run("topic", "delete", "orders", "--yes", token=alice, status=1)
    assert "User:alice may not delete topic 'orders'" in refused.stderr
    site.run("access", "acls", "deny", "*", "describe", "--topic", "orders")
    assert "There are no topics" in site.run("topic", "list", token=alice).output
    site.run("access", "acls", "remove", "--deny", "*", "describe", "--topic", "orders")
    site.run("access", "acls", "remove", "alice", "read", "--topic", "ord", "--prefixed")
    listed = json.loads(site.run("access", "acls", "list", "--json").stdout)["acls"]
    assert {rule["user"] for rule in listed} == {"admin"}
    assert "There are no topics" in site.run("topic", "list", token=alice).output


def test_a_revoked_token_is_refused(site):
    alice = site.token("alice", "--scope", "read", "--note", "laptop")
    listed = site.run("access", "tokens", "list").stdout
    assert "laptop" in listed
    secret = alice.read_text().strip().split("_", 2)[2]
    assert secret not in listed
    token_id = alice.read_text().split("_")[1]
    assert site.run("access", "tokens", "revoke", token_id).stdout == f"revoked {token_id}\n"
    assert "not valid" in site.run("access", "whoami", token=alice, status=1).stderr
    assert "does not exist" in site.run("access", "tokens", "revoke", token_id, status=1).stderr


def test_others_cannot_administer(site):
    alice = site.token("alice")
    for words in (
        ("tokens", "list"),
        ("tokens", "create", "admin"),
        ("tokens", "revoke", "0" * 12),
        ("acls", "list"),
        ("acls", "allow", "alice", "all", "--cluster"),
        ("users", "list"),
        ("users", "delete", "root"),
    ):
        refused = site.run("access", *words, token=alice, status=1)
        assert "User:alice may not" in refused.stderr, words


def test_a_rule_names_one_resource(site):
    for words in ((), ("--topic", "a", "--group", "b"), ("--topic", "a", "--cluster")):
        refused = site.run("access", "acls", "allow", "alice", "read", *words, status=2)
        assert "one of --topic, --group, --transactional-id and --cluster" in refused.stderr


def test_users_with_passwords_are_listed(site):
    assert json.loads(site.run("access", "users", "list", "--json").stdout) == {"users": []}


# Clients.


def test_both_clients_log_in_with_a_token(site):
    token = site.admin.read_text().strip()
    with Client(site.node.url, config=ClientConfig(token=token)) as client:
        client.create_topic("orders")
        client.append("orders", {"n": 1})

    async def read() -> list[object]:
        config = ClientConfig(token_file=str(site.admin))
        async with AsyncClient(site.node.url, config=config) as client:
            return [topic.name for topic in await client.topics()]

    assert asyncio.run(read()) == ["orders"]
    with Client(site.node.url) as client, pytest.raises(NotAuthenticated):
        client.append("orders", {"n": 2})
    alice = ClientConfig(token_file=str(site.token("alice")))
    with Client(site.node.url, config=alice) as client, pytest.raises(UnknownTopic):
        client.append("orders", {"n": 3})
    site.run("access", "acls", "allow", "alice", "describe", "--topic", "orders")
    site.run("access", "acls", "allow", "alice", "idempotent_write", "--cluster")
    with Client(site.node.url, config=alice) as client, pytest.raises(TopicAccessDenied):
        client.append("orders", {"n": 4})


def test_a_token_comes_from_the_config_a_file_or_the_environment(tmp_path):
    file = tmp_path / "token"
    file.write_text("from-file\n")
    both = {"MILLSTREAM_TOKEN": "from-variable", "MILLSTREAM_TOKEN_FILE": str(file)}
    assert token_of(ClientConfig(), {}) is None
    assert token_of(ClientConfig(), both) == "from-variable"
    assert token_of(ClientConfig(), {"MILLSTREAM_TOKEN_FILE": str(file)}) == "from-file"
    assert token_of(ClientConfig(token_file=str(file)), both) == "from-file"
    assert token_of(ClientConfig(token="from-config", token_file=str(file)), both) == "from-config"


@pytest.mark.parametrize("text", ["", "a b", "a\nb", "é", "x" * 1025])
def test_a_token_that_cannot_be_sent_is_refused_and_not_repeated(tmp_path, text):
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match="one token of 1 to 1024 printable") as refused:
        token_of(ClientConfig(token_file=str(file)), {})
    assert not text or text not in str(refused.value).replace(str(file), "")


def test_a_token_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidConfig, match="no-file: No such file"):
        token_of(ClientConfig(token_file=str(tmp_path / "no-file")), {})


def test_a_config_does_not_show_its_token():
    assert "secret" not in repr(ClientConfig(token="secret"))
