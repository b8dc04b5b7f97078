"""Who may use which HTTP operation: every route, from the access that each one declares."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import user
from millstream.broker.access.resources import CLUSTER_NAME, Operation, ResourceType
from millstream.config.schema import AccessConfig
from millstream.servers.http.app import OPERATIONS
from millstream.testing.broker import RunningBroker, running_broker

from .calls import Answer, ask

ROOT = Caller(user("root"), "127.0.0.1")
NAME = "orders"

BODIES = {
    ("PUT", "/v1/topics/{topic}"): {},
    ("POST", "/v1/topics/{topic}/records"): {"records": [{"value": 1}]},
    ("DELETE", "/v1/topics/{topic}/records"): {"before": 0},
    ("PUT", "/v1/groups/{group:path}/offsets"): {"topic": NAME, "to": 0},
    ("PUT", "/v1/queues/{queue}"): {"lease_ms": 5000},
    ("POST", "/v1/queues/{queue}/claim"): {"max": 1},
    ("POST", "/v1/queues/{queue}/ack"): {"receipts": ["x"]},
    ("POST", "/v1/queues/{queue}/nack"): {"receipts": ["x"]},
    ("POST", "/v1/queues/{queue}/release"): {"receipts": ["x"]},
    ("POST", "/v1/queues/{queue}/extend"): {"receipts": ["x"]},
    ("POST", "/v1/queues/{queue}/redrive"): {"max": 1},
    ("POST", "/v1/cluster/reassign"): {},
    ("POST", "/v1/cluster/rebalance"): {},
    ("POST", "/v1/cluster/elect"): {},
    ("POST", "/v1/cluster/nodes/{node}/breaker"): {},
    ("PUT", "/v1/quotas"): {"client_id": "c", "rates": {"producer_byte_rate": 1e9}},
    ("DELETE", "/v1/quotas"): {"client_id": "c"},
    ("POST", "/v1/access/acls"): {"user": "x", "operation": "read", "resource_type": "topic"},
    ("DELETE", "/v1/access/acls"): {"user": "x", "operation": "read", "resource_type": "topic"},
    ("POST", "/v1/access/tokens"): {"user": "x"},
}
QUERIES = {
    "/v1/topics/{topic}/records": "?from=0",
    "/v1/topics/{topic}/search": "?text=x",
    "/v1/events": f"?topic={NAME}",
}
ENDLESS = {"/v1/queues/{queue}/work", "/v1/events"}
"""Responses that do not end by themselves: only refusals are looked at."""

CHECKED: dict[tuple[str, str], list[tuple[ResourceType, Operation]]] = {
    ("PUT", "/v1/topics/{topic}"): [(ResourceType.TOPIC, Operation.ALTER_CONFIGS)],
    ("POST", "/v1/producers"): [(ResourceType.TOPIC, Operation.WRITE)],
    ("PUT", "/v1/groups/{group:path}/offsets"): [(ResourceType.TOPIC, Operation.READ)],
    ("GET", "/v1/events"): [(ResourceType.TOPIC, Operation.READ)],
    ("PUT", "/v1/streams/{path:path}"): [(ResourceType.TOPIC, Operation.WRITE)],
}
"""Rights that handlers check themselves, for the samples."""

FREE = {
    ("GET", "/v1/topics"),
    ("GET", "/v1/groups"),
    ("GET", "/v1/queues"),
    ("GET", "/v1/transactions"),
    ("GET", "/v1/ws"),
    ("GET", "/v1/access/whoami"),
    ("OPTIONS", "/v1/streams/{path:path}"),
}
"""Operations that need no right: lists, which are filtered; and those that other tests look at."""


def needs_of(operation) -> list[tuple[ResourceType, Operation]]:
    declared = [(need.kind, need.operation) for need in operation.access.needs]
    return declared + CHECKED.get((operation.method, operation.path), [])


CELLS = [
    pytest.param(operation, id=f"{operation.method}-{operation.path}") for operation in OPERATIONS
]
NEEDY = [cell for cell in CELLS if needs_of(cell.values[0])]


def test_every_operation_needs_a_right_or_is_listed_as_one_that_does_not():
    free = {(item.method, item.path) for item in OPERATIONS if not needs_of(item)}
    assert free == FREE
    for operation in OPERATIONS:
        if not operation.access.needs:
            words = operation.access.checks
            assert words or operation.access.is_open, (operation.method, operation.path)


class Gate:
    """A node with a topic that is a queue too, and callers with rights of their own."""

    def __init__(self, node: RunningBroker) -> None:
        self.node = node
        self.access = node.server.broker.access
        self.count = 0
        node.run(node.server.broker.topics.create(NAME, partitions=1))
        self.root = self.token("root")
        put = self.ask(self.root, "PUT", f"/v1/queues/{NAME}", {"dead_letter": NAME + "-dead"})
        assert put.status == 201, put.body
        transactions = node.server.broker.transactions
        node.run(transactions.of(NAME).init_producer(NAME, 60_000))

    def token(self, name: str) -> str:
        _, text = self.node.run(self.access.create_token(user(name), by=ROOT))
        return text

    def caller(self, *rights: tuple[ResourceType, Operation]) -> str:
        """The token of a new user, who has these rights to the resources of the samples."""
        self.count += 1
        for kind, operation in rights:
            name = CLUSTER_NAME if kind is ResourceType.CLUSTER else NAME
            acl = Acl(
                ResourcePattern(kind, name),
                user(f"user-{self.count}"),
                "*",
                operation,
                Permission.ALLOW,
            )
            self.node.run(self.access.create_acl(acl, by=ROOT))
        return self.token(f"user-{self.count}")

    def ask(self, token: str | None, method: str, path: str, body: object = None) -> Answer:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        return ask(self.node.url, method, path, data, headers)

    def sample(self, token: str | None, operation) -> Answer:
        path = operation.path
        for parameter in ("topic", "queue", "group:path", "path:path", "transaction:path"):
            path = path.replace("{" + parameter + "}", NAME)
        path = path.replace("{partition}", "0").replace("{node}", "1").replace("{token}", "0" * 12)
        path += QUERIES.get(operation.path, "")
        body = BODIES.get((operation.method, operation.path))
        if operation.method == "POST" and "streams" in path:
            body = {}
        return self.ask(token, operation.method, path, body)


@pytest.fixture(scope="module")
def gate(tmp_path_factory) -> Iterator[Gate]:
    access = AccessConfig(enabled=True, super_users=("root",))
    with running_broker(tmp_path_factory.mktemp("gate"), access=access) as node:
        yield Gate(node)


def is_refused(answer: Answer) -> bool:
    if answer.status in (401, 403):
        return True
    if answer.status != 404:
        return False
    # A HEAD has no body, and no sample is about something that is absent but a token.
    return not answer.body or answer.code in ("unknown_topic",)


@pytest.mark.parametrize("operation", NEEDY)
def test_a_request_without_a_login_is_asked_for_one(gate, operation):
    answer = gate.sample(None, operation)
    assert answer.status == 401, answer.body
    assert answer.headers["www-authenticate"] == 'Bearer realm="millstream"'


@pytest.mark.parametrize("operation", CELLS)
def test_a_token_that_is_not_valid_is_refused_everywhere(gate, operation):
    if operation.access.is_open:
        return
    answer = gate.sample("ms_000000000000_" + "A" * 32, operation)
    assert answer.status == 401, answer.body


@pytest.mark.parametrize("operation", NEEDY)
def test_a_caller_that_lacks_one_of_the_needed_rights_is_refused(gate, operation):
    needs = needs_of(operation)
    for missing in needs:
        rights = [need for need in needs if need != missing]
        answer = gate.sample(gate.caller(*rights), operation)
        assert answer.status in (403, 404), answer.body
        assert is_refused(answer), (missing, answer.body)


@pytest.mark.parametrize("operation", NEEDY)
def test_a_caller_with_exactly_the_needed_rights_is_let_in(gate, operation):
    if operation.path in ENDLESS or operation.method in ("DELETE", "HEAD"):
        pytest.skip("it does not end, has no body, or would delete what the other cells need")
    if "dead" in operation.path or "redrive" in operation.path:
        pytest.skip("needs a right to a second topic: another test")
    answer = gate.sample(gate.caller(*needs_of(operation)), operation)
    assert not is_refused(answer), (answer.status, answer.body)


@pytest.mark.parametrize("operation", NEEDY)
def test_other_rights_to_the_same_resources_do_not_help(gate, operation):
    needs = needs_of(operation)
    wrong = {
        ResourceType.TOPIC: (Operation.READ, Operation.WRITE),
        ResourceType.GROUP: (Operation.READ, Operation.DELETE),
        ResourceType.CLUSTER: (Operation.CREATE,),
        ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE,),
    }
    implied_by = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE},
    }
    for kind, wanted in needs:
        for operation_given in wrong[kind]:
            if operation_given is wanted or operation_given in implied_by.get(wanted, ()):
                continue
            others = [need for need in needs if need != (kind, wanted)]
            if (kind, operation_given) in others:
                continue
            answer = gate.sample(gate.caller(*others, (kind, operation_given)), operation)
            assert answer.status in (403, 404), (operation_given, answer.body)


@pytest.mark.parametrize("operation", NEEDY)
def test_a_super_user_is_let_in(gate, operation):
    if operation.path in ENDLESS or operation.method in ("DELETE", "HEAD"):
        return
    answer = gate.sample(gate.root, operation)
    assert not is_refused(answer), answer.body


@pytest.mark.parametrize("kind", ["topics", "groups", "queues"])
def test_lists_have_only_what_the_caller_may_describe(gate, kind):
    def listed(token):
        answer = gate.ask(token, "GET", f"/v1/{kind}")
        assert answer.status == 200
        return NAME in answer.body.decode()

    if kind == "groups":
        body = {"topic": NAME, "to": 0}
        assert gate.ask(gate.root, "PUT", f"/v1/groups/{NAME}/offsets", body).status == 200
    resource = ResourceType.TOPIC if kind == "topics" else ResourceType.GROUP
    assert listed(gate.root)
    assert listed(gate.caller((resource, Operation.DESCRIBE)))
    assert not listed(gate.caller())
    assert not listed(None)


def test_a_page_of_a_list_does_not_name_what_it_leaves_out(gate):
    token = gate.caller()
    answer = gate.ask(token, "GET", "/v1/topics?limit=1")
    assert answer.json == {"topics": [], "next": None}
    assert gate.ask(token, "GET", "/v1/groups?limit=1").json == {"groups": [], "next": None}


def test_a_topic_that_exists_and_one_that_does_not_look_the_same_to_strangers(gate):
    token = gate.caller((ResourceType.GROUP, Operation.ALL))
    for operation in OPERATIONS:
        if operation.path.startswith(("/v1/topics/", "/v1/streams/")):
            path = operation.path.replace("{partition}", "0")
            for parameter in ("{topic}", "{path:path}"):
                path = path.replace(parameter, "NAME")
            path += QUERIES.get(operation.path, "")
            body = BODIES.get((operation.method, operation.path))
            if operation.method == "OPTIONS":
                continue
            existing, absent = (
                gate.ask(token, operation.method, path.replace("NAME", name), body)
                for name in (NAME, "absent")
            )
            assert existing.status == absent.status, (operation.method, path)
            assert existing.body.replace(NAME.encode(), b"absent") == absent.body


def test_dead_letters_need_a_right_to_their_topic(gate):
    path = f"/v1/queues/{NAME}/dead_letters"
    token = gate.caller((ResourceType.GROUP, Operation.DESCRIBE))
    assert gate.ask(token, "GET", path).status == 404
    assert gate.ask(gate.root, "GET", path).status == 200


def test_a_queue_cannot_send_dead_letters_where_its_owner_may_not_write(gate):
    rights = (
        (ResourceType.GROUP, Operation.ALL),
        (ResourceType.TOPIC, Operation.ALL),
    )
    token = gate.caller(*rights)
    answer = gate.ask(token, "PUT", f"/v1/queues/{NAME}", {"dead_letter": "payroll"})
    assert answer.status == 404
    assert gate.node.server.broker.topics.find("payroll") is None


def test_a_new_queue_needs_rights_to_the_dead_letter_topic_that_it_gets_by_default(gate):
    gate.node.run(gate.node.server.broker.topics.create("mail", partitions=1))
    for kind in (ResourceType.GROUP, ResourceType.TOPIC):
        pattern = ResourcePattern(kind, "mail")
        acl = Acl(pattern, user("postman"), "*", Operation.ALL, Permission.ALLOW)
        gate.node.run(gate.access.create_acl(acl, by=ROOT))
    token = gate.token("postman")
    refused = gate.ask(token, "PUT", "/v1/queues/mail", {})
    assert (refused.status, refused.message) == (404, "topic 'mail-dead' does not exist")
    acl = acl._replace(pattern=ResourcePattern(ResourceType.TOPIC, "mail-dead"))
    gate.node.run(gate.access.create_acl(acl, by=ROOT))
    assert gate.ask(token, "PUT", "/v1/queues/mail", {}).status == 201


def test_an_append_creates_only_topics_that_the_caller_may_create(gate):
    acl = Acl(
        ResourcePattern(ResourceType.TOPIC, "new"), user("maker"), "*", Operation.WRITE,
        Permission.ALLOW,
    )  # fmt: skip
    gate.node.run(gate.access.create_acl(acl, by=ROOT))
    token = gate.token("maker")
    body = {"records": [{"value": 1}]}
    assert gate.ask(token, "POST", "/v1/topics/new/records", body).status == 403
    gate.node.run(gate.access.create_acl(acl._replace(operation=Operation.CREATE), by=ROOT))
    assert gate.ask(token, "POST", "/v1/topics/new/records", body).status == 201


def test_health_is_open_and_metrics_are_not(gate):
    for path in ("/health/live", "/health/ready", "/health/startup", "/openapi.json", "/"):
        assert gate.ask(None, "GET", path).status == 200
    assert gate.ask(None, "GET", "/metrics").status == 401
    assert gate.ask(gate.root, "GET", "/metrics").status == 200


def test_a_token_of_a_super_user_is_made_by_super_users_only(gate):
    admin = gate.caller((ResourceType.CLUSTER, Operation.ALL))
    assert gate.ask(admin, "POST", "/v1/access/tokens", {"user": "root"}).status == 403
    assert gate.ask(admin, "POST", "/v1/access/tokens", {"user": "carol"}).status == 201
    assert gate.ask(gate.root, "POST", "/v1/access/tokens", {"user": "root"}).status == 201


def test_a_caller_can_ask_who_it_is(gate):
    assert gate.ask(None, "GET", "/v1/access/whoami").json["principal"] == "User:ANONYMOUS"
    answer = gate.ask(gate.root, "GET", "/v1/access/whoami").json
    assert (answer["principal"], answer["enabled"]) == ("User:root", True)
    assert answer["token"] == gate.root.split("_")[1]
