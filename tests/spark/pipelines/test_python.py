"""Pipelines defined in Python, and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines import (
    FunctionStep,
    FunctionTarget,
    Pipeline,
    SqlStep,
    TableSource,
    TopicSource,
    TopicTarget,
    Watermark,
    load,
    step,
    target,
)
from millstream.spark.pipelines.definition.graph import in_order, inputs_of

CLICKS = TopicSource(name="clicks", topic="clicks")
OUT = TopicTarget(name="out", reads="clicks", topic="out")

FILE = """
from millstream.spark.pipelines import Pipeline, TopicSource, TopicTarget, step

@step
def loud(clicks):
    return clicks

pipeline = Pipeline(
    name="py",
    sources=[TopicSource(name="clicks", topic="clicks")],
    steps=[loud],
    targets=[TopicTarget(name="loud", topic="out")],
)
"""


def test_a_function_is_a_step_that_reads_what_its_parameters_name():
    @step
    def joined(clicks, users, spark):
        return clicks

    assert isinstance(joined, FunctionStep)
    assert joined.name == "joined"
    assert inputs_of(joined) == {"clicks", "users"}


def test_a_step_may_have_another_name_and_a_watermark():
    late = Watermark(column="at", delay="1 minute")

    @step(name="other", watermark=late)
    def joined(clicks):
        return clicks

    assert (joined.name, joined.watermark) == ("other", late)


def test_a_function_of_a_batch_and_its_number_is_a_target():
    @target(reads="clicks", mode="update")
    def merge(batch, batch_id):
        pass

    assert isinstance(merge, FunctionTarget)
    assert (merge.name, merge.reads, merge.mode) == ("merge", "clicks", "update")


def test_steps_come_in_the_order_in_which_they_need_each_other():
    last = SqlStep(name="last", sql="SELECT * FROM middle")

    @step
    def first(clicks):
        return clicks

    middle = SqlStep(name="Middle", sql="SELECT * FROM First")
    assert in_order([last, middle, first]) == [first, middle, last]


def test_a_python_file_gives_its_pipeline_with_the_place_of_the_file(tmp_path: Path):
    (tmp_path / "p.py").write_text(FILE)
    found = load(str(tmp_path / "p.py"))
    assert found.name == "py"
    assert found.home == str(tmp_path)
    assert isinstance(found.steps[0], FunctionStep)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "`pipeline` must be a Pipeline, got None"),
        ("pipeline = 7", "`pipeline` must be a Pipeline, got 7"),
        ("import nowhere_at_all", "line 1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("x = 1\ny = x / 0", "line 2: ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: "),
        (FILE.replace('name="py"', 'name=""'), "pipeline.name must be a name .* got ''"),
        (
            FILE.replace("def loud(clicks)", "def loud(cliks)"),
            "steps.loud reads 'cliks', .*'clicks'",
        ),
    ],
)
def test_what_is_wrong_in_a_python_file_is_named_with_its_line(
    text: str, message: str, tmp_path: Path
):
    path = tmp_path / "p.py"
    path.write_text(text)
    with pytest.raises(InvalidPipeline, match=message) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path}: ")


def test_functions_with_parameters_of_no_name_are_refused():
    with pytest.raises(InvalidPipeline, match=r"steps.f must have one parameter .* got \*frames"):
        FunctionStep(name="f", function=lambda *frames: frames[0])
    with pytest.raises(InvalidPipeline, match=r"targets.f must be a function of .*, got \(batch\)"):
        FunctionTarget(name="f", function=lambda batch: None)  # type: ignore[misc]


def test_what_is_no_source_step_or_target_is_refused():
    with pytest.raises(InvalidPipeline, match=r"sources must be a list of TopicSource"):
        Pipeline(name="p", sources=(OUT,), targets=(OUT,))  # type: ignore[arg-type]


def test_two_targets_with_one_checkpoint_are_refused():
    with pytest.raises(
        InvalidPipeline, match="names of targets must be distinct, got 'out' 2 times"
    ):
        Pipeline(name="p", sources=(CLICKS,), targets=(OUT, OUT))


def test_a_function_that_takes_the_session_may_stream_by_itself():
    @step
    def rates(spark):
        return spark.readStream.format("rate").load()

    out = TopicTarget(name="rates", topic="out")
    assert Pipeline(name="p", steps=(rates,), targets=(out,)).steps == (rates,)


def test_a_function_of_tables_alone_does_not_stream():
    table = TableSource(name="users", table="./users")

    @step
    def some(users):
        return users

    with pytest.raises(
        InvalidPipeline, match=r"targets.some.from must depend on a stream .* got 'some'"
    ):
        Pipeline(
            name="p",
            sources=(table,),
            steps=(some,),
            targets=(TopicTarget(name="some", topic="out"),),
        )
