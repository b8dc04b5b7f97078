"""Every state that a power cut could leave is found, and no other."""

from __future__ import annotations

import random

import pytest

from millstream.testing import SimulatedFilesystem, sample_crash_states
from millstream.testing.disk.crash_states import crash_states
from millstream.testing.suites.files import make_file


def states_at_the_end(disk, *, seed=1, **options):
    """Return the states of the last point, by the name of their variant."""
    point = len(disk.trace.events)
    found = crash_states(disk.trace, seed=seed, points=[point], **options)
    return {state.variant: state.filesystem().contents() for state in found}


@pytest.fixture
def disk():
    return SimulatedFilesystem({"/a": b""})


@pytest.fixture
def file(disk):
    return disk.open("/a")


def test_a_disk_on_which_nothing_happened_has_one_state(disk):
    (state,) = crash_states(disk.trace, seed=1)
    assert (state.point, state.variant) == (0, "nothing")
    assert state.filesystem().contents() == {"/a": b""}


def test_a_write_is_lost_kept_torn_or_zero(disk, file):
    file.write_at(0, [b"x" * 2000])
    assert {name: found["/a"] for name, found in states_at_the_end(disk, randoms=0).items()} == {
        "nothing": b"",
        "everything": b"x" * 2000,
        "torn 1 byte": b"x",
        "torn half": b"x" * 1000,
        "torn 512": b"x" * 512,
        "zero-filled": bytes(2000),
        "zero-filled tail": b"x" * 1000 + bytes(1000),
    }


def test_writes_survive_as_every_prefix_and_as_all_but_any_one(disk, file):
    for index in range(4):
        file.write_at(index, [b"%d" % (index + 1)])
    found = {name: found["/a"] for name, found in states_at_the_end(disk, randoms=0).items()}
    assert found == {
        "nothing": b"",
        "prefix 1": b"1",
        "prefix 2": b"12",
        "prefix 3": b"123",
        "everything": b"1234",
        "all but 1": b"\x00234",
        "all but 2": b"1\x0034",
        "all but 3": b"12\x004",
        "zero-filled": b"123\x00",
        "zero-filled tail": b"123\x00",
    }


def test_zeros_never_replace_older_bytes():
    disk = SimulatedFilesystem({"/a": b"old"})
    disk.open("/a").write_at(0, [b"newer"])
    assert states_at_the_end(disk, randoms=0)["zero-filled"] == {"/a": b"old\0\0"}


def test_the_last_write_is_torn_though_names_changed_since(disk, file):
    file.write_at(0, [b"1234"])
    make_file(disk, "/b")
    assert states_at_the_end(disk)["torn half"] == {"/a": b"12", "/b": b""}


def test_random_states_differ_from_each_other_and_repeat_with_their_seed(disk, file):
    for index in range(20):
        file.write_at(index, [b"x"])
    first = states_at_the_end(disk, randoms=50)
    images = {found["/a"] for name, found in first.items() if name.startswith("random")}
    assert len(images) > 45
    assert states_at_the_end(disk, randoms=50) == first
    assert states_at_the_end(disk, randoms=50, seed=2) != first


def test_random_states_differ_from_point_to_point(disk, file):
    file.write_at(0, [b"x" * 10_000])
    disk.note("here")
    states = [state for state in crash_states(disk.trace, seed=1) if "random" in state.variant]
    assert {state.point for state in states} == {1, 2}


def test_a_single_name_has_no_random_states(disk):
    make_file(disk, "/b")
    assert set(states_at_the_end(disk)) == {"nothing", "everything"}


def test_a_synced_change_is_in_every_state(disk, file):
    file.write_at(0, [b"synced"])
    file.sync()
    file.write_at(6, [b"!"])
    synced = [state for state in crash_states(disk.trace, seed=1) if state.point >= 2]
    assert len(synced) > 3
    assert all(state.filesystem().content("/a").startswith(b"synced") for state in synced)


def test_a_change_under_a_failed_sync_stays_optional_and_what_follows_does_not(disk, file):
    file.write_at(0, [b"1"])
    file.fail_sync()
    file.write_at(1, [b"2"])
    file.sync()
    assert states_at_the_end(disk, randoms=0) == {
        "nothing": {"/a": b"\x002"},
        "everything": {"/a": b"12"},
        "zero-filled": {"/a": b"\x002"},
        "zero-filled tail": {"/a": b"\x002"},
    }


def test_a_state_has_the_notes_made_before_the_cut(disk, file):
    disk.note("sent")
    file.write_at(0, [b"x"])
    file.sync()
    disk.note("acknowledged")
    notes = {state.point: list(state.notes) for state in crash_states(disk.trace, seed=1)}
    assert notes == {
        0: [],
        1: ["sent"],
        2: ["sent"],
        3: ["sent"],
        4: ["sent", "acknowledged"],
    }


def test_a_state_comes_once_until_something_else_happens_than_a_change(disk, file):
    file.write_at(0, [b"1"])
    file.write_at(1, [b"2"])
    disk.note("both")
    found = [(state.point, state.variant) for state in crash_states(disk.trace, seed=1, randoms=0)]
    whole = [(point, name) for point, name in found if not name.startswith("zero")]
    assert whole == [
        (0, "nothing"),
        (1, "everything"),
        (2, "everything"),
        (2, "all but 1"),
        (3, "nothing"),
        (3, "prefix 1"),
        (3, "everything"),
        (3, "all but 1"),
    ]


def test_a_state_says_where_it_comes_from(disk, file):
    file.write_at(0, [b"1234"])
    (state,) = (state for state in crash_states(disk.trace, seed=1) if state.variant == "torn half")
    assert str(state) == ("power cut at point 1, after write of 4 bytes at 0 of file 1: torn half")


def test_every_call_builds_a_new_disk(disk, file):
    file.write_at(0, [b"x"])
    state = next(crash_states(disk.trace, seed=1))
    state.filesystem().open("/a").write_at(0, [b"changed"])
    assert state.filesystem().content("/a") == b""


def test_the_recovery_from_a_crash_can_crash_too(disk, file):
    file.write_at(0, [b"x"])
    for state in crash_states(disk.trace, seed=1):
        recovered = state.filesystem()
        found = recovered.content("/a")
        recovered.open("/a").write_at(1, [b"y"])
        for again in crash_states(recovered.trace, seed=1):
            assert again.filesystem().content("/a").startswith(found)


class Model:
    """What must survive, in the simplest form: whole files and whole directories."""

    def __init__(self):
        self.names = {}
        self.durable_names = {}
        self.content = {}
        self.durable_content = {}

    def nothing(self):
        names = self.durable_names
        return {name: self.durable_content.get(file, b"") for name, file in names.items()}

    def everything(self):
        return {name: self.content[file] for name, file in self.names.items()}


def step(chance, disk, model, names):
    """Make one random change to the disk and to the model."""
    name = chance.choice(names)
    action = chance.choice(["create", "write", "write", "cut", "sync", "rename", "remove", "names"])
    if action == "names":
        disk.sync_directory("/")
        model.durable_names = dict(model.names)
    elif action == "create" and name not in model.names:
        disk.create(name)
        model.names[name] = file = object()
        model.content[file] = b""
    elif name in model.names:
        change(chance, disk, model, name, action)


def change(chance, disk, model, name, action):
    file, opened = model.names[name], disk.open(name)
    if action == "write":
        position, data = chance.randrange(20), chance.randbytes(chance.randint(1, 20))
        opened.write_at(position, [data])
        old = model.content[file].ljust(position, b"\0")
        model.content[file] = old[:position] + data + old[position + len(data) :]
    elif action == "cut":
        size = chance.randrange(30)
        opened.truncate(size)
        model.content[file] = model.content[file][:size].ljust(size, b"\0")
    elif action == "sync":
        opened.sync()
        model.durable_content[file] = model.content[file]
    elif action == "rename":
        disk.rename(name, "/target")
        model.names["/target"] = model.names.pop(name)
    elif action == "remove":
        disk.remove(name)
        del model.names[name]


@pytest.mark.parametrize("seed", range(30))
def test_least_and_most_agree_with_a_plain_model_at_every_point(seed):
    chance = random.Random(seed)
    disk, model = SimulatedFilesystem(), Model()
    least, most = {0: {}}, {0: {}}
    for _ in range(150):
        step(chance, disk, model, ["/a", "/b", "/c", "/target"])
        point = len(disk.trace.events)
        least[point], most[point] = model.nothing(), model.everything()
    for point in range(len(disk.trace.events) + 1):
        states = {
            state.variant: state
            for state in crash_states(disk.trace, seed=seed, points=[point], randoms=0)
        }
        assert states["nothing"].filesystem().contents() == least[point]
        last = states.get("everything", states["nothing"])
        assert last.filesystem().contents() == most[point]
    assert disk.crash().contents() == least[len(disk.trace.events)]


class TestSampling:
    @pytest.fixture
    def trace(self):
        chance = random.Random(0)
        disk, model = SimulatedFilesystem(), Model()
        for _ in range(200):
            step(chance, disk, model, ["/a", "/b", "/c", "/target"])
        return disk.trace

    @staticmethod
    def images(states):
        return [(s.point, s.variant, dict(s.filesystem().contents())) for s in states]

    def test_the_same_seed_gives_the_same_states_and_another_seed_others(self, trace):
        first, again, other = (
            self.images(sample_crash_states(trace, 300, seed)) for seed in (1, 1, 2)
        )
        assert len(first) == 300
        assert first == again
        assert first != other

    def test_a_sample_has_no_state_twice_and_is_in_order(self, trace):
        drawn = [(s.point, s.variant) for s in sample_crash_states(trace, 500, 1)]
        assert len(set(drawn)) == 500
        points = [point for point, _ in drawn]
        assert points == sorted(points)

    def test_a_sample_larger_than_the_space_is_the_space(self, trace):
        every = [(s.point, s.variant) for s in crash_states(trace, seed=1)]
        assert [(s.point, s.variant) for s in sample_crash_states(trace, 10**6, 1)] == every

    def test_a_sample_reaches_the_whole_space_evenly(self, trace):
        every = [s.point for s in crash_states(trace, seed=1)]
        middle = every[len(every) // 2]
        below = sum(s.point < middle for s in sample_crash_states(trace, 1000, 1))
        expected = 1000 * sum(point < middle for point in every) / len(every)
        assert abs(below - expected) < 60
