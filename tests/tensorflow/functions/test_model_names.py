"""Models of a program have predictable names, so that a `dump_list` in an acl.json can select them on TensorFlow."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import opdump
from opdump.adapters.program_marks import MarkError

X = np.ones((4, 3), np.float32)


def program(name="mlp", given=""):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(2, name="first"), keras.layers.Dense(1)], name=name)
    if given:
        opdump.name_model(model, given)
    model.compile("sgd", "mse")
    model.fit(X, X[:, :1], verbose=0, epochs=2)
    model.predict(X, verbose=0)

    @tf.function
    def score(x):
        return tf.sin(x) * 2.0

    score(tf.constant([1.0]))
    tf.cos(tf.constant([1.0]))


def dumped(run=program, **section: Any):
    """The directories below the device with their operator types, the report, and the models that `show` lists."""
    folder = Path(tempfile.mkdtemp())
    (folder / "out").mkdir()
    config = {"dump": {"dump_path": str(folder / "out"), "dump_mode": "all", **section}}
    (folder / "acl.json").write_text(json.dumps(config))
    with opdump.capture(folder / "acl.json") as dump:
        run()
    found: dict[str, set[str]] = {}
    for file in (folder / "out").glob("2*/0/**/*"):
        if file.is_file() and file.name[0].isupper():
            found.setdefault("/".join(file.parts[len(folder.parts) + 3 : -1]), set()).add(file.name.partition(".")[0])
    return found, dump.report


def test_a_keras_model_is_meant_by_its_name() -> None:
    found, report = dumped(dump_list=[{"model_name": "mlp"}])
    assert {place.partition("/")[0] for place in found} == {"mlp"}, found
    assert any("MatMul" in types for types in found.values())
    assert report.warnings == ()


def test_a_keras_model_is_meant_by_the_name_that_the_program_gives_it() -> None:
    found, report = dumped(lambda: program("other", "ResNet-50"), dump_list=[{"model_name": "ResNet-50"}])
    assert {place.partition("/")[0] for place in found} == {"ResNet-50"}, found
    assert report.warnings == ()


def test_a_function_is_meant_by_its_name() -> None:
    found, report = dumped(dump_list=[{"model_name": "score"}])
    assert [(place.partition("/")[0], types) for place, types in found.items()] == [
        ("score", {"Sin", "Mul", "Identity"})
    ]
    assert report.warnings == ()


def test_layers_of_a_model_are_chosen_by_name() -> None:
    found, report = dumped(dump_list=[{"model_name": "score", "layer": ["Sin", "Sine"]}])
    assert list(found.values()) == [{"Sin"}]
    assert report.warnings == ("dump_list.layer: 'Sine' is not an operator that ran; nearest: 'Sin'",), report.warnings


def test_the_signature_of_a_saved_model_is_meant_by_its_key() -> None:
    class Scores(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def score(self, x):
            return tf.exp(x)

    folder, module = tempfile.mkdtemp(), Scores()
    tf.saved_model.save(module, folder, signatures={"ranking": module.score})
    loaded = tf.saved_model.load(folder)
    for name, call in (("ranking", loaded.signatures["ranking"]), ("score", loaded.score)):
        found, report = dumped(lambda call=call: call(tf.constant([1.0])), dump_list=[{"model_name": name}])
        assert [place.partition("/")[0] for place in found] == [name], found
        assert "Exp" in next(iter(found.values()))
        assert report.warnings == ()


def test_a_session_is_meant_by_what_it_fetches() -> None:
    def run():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.constant([1.0, 2.0])
            loss = tf.reduce_sum(tf.exp(x), name="loss")
            other = tf.sin(x, name="other")
            session.run([loss])
            session.run(other)

    found, report = dumped(run, dump_list=[{"model_name": "loss"}])
    assert [place.partition("/")[0] for place in found] == ["loss"], found
    assert report.warnings == ()


def test_dump_op_switch_without_models_dumps_operators_outside_of_models() -> None:
    found, report = dumped(dump_op_switch="on")
    assert set(found) == {""}, found
    assert "Cos" in found[""]
    assert "Sin" not in found[""]
    assert report.captured > 0
    assert report.warnings == ()


def test_the_eager_program_may_be_named_as_a_model() -> None:
    found, _ = dumped(dump_list=[{"model_name": "eager"}])
    assert {place.partition("/")[0] for place in found} == {"eager"}
    assert any("Cos" in types for types in found.values())


def test_all_models_are_meant_by_an_entry_without_a_name() -> None:
    found, report = dumped(dump_list=[{}])
    assert {place.partition("/")[0] for place in found} == {"", "mlp", "score"}, found
    assert report.warnings == ()


def test_a_name_that_no_model_has_is_reported_with_the_nearest() -> None:
    found, report = dumped(dump_list=[{"model_name": "scor"}])
    assert found == {}
    (text,) = report.warnings
    assert re.search(r"no model is called 'scor'; there are 'mlp'.*nearest: 'score'", text), text
    assert "iteration" not in text


def test_a_range_that_contains_no_operator_is_reported() -> None:
    entry = {"model_name": "score", "opname_range": [{"begin": "mul", "end": "Sin"}]}
    _, report = dumped(dump_list=[entry], dump_level="op")
    (text,) = report.warnings
    assert "runs before" in text, text


def test_name_model_refuses_a_function_and_says_what_it_accepts() -> None:
    with pytest.raises(
        MarkError, match="is not a PyTorch module, a MindSpore Cell, a Keras model or the file of an ONNX model; a"
    ):
        opdump.name_model(tf.function(tf.sin), "sine")


def test_a_model_that_no_eager_program_has_is_reported_with_the_name_of_that() -> None:
    found, report = dumped(lambda: tf.cos(tf.constant([1.0])), dump_list=[{"model_name": "ResNet"}])
    assert not found
    assert report.warnings == ("dump_list.model_name: no model is called 'ResNet'; there are 'eager'",)
    assert report.nothing.reason == "no model in dump_list ran; the models that ran are 'eager'"


def test_a_model_that_is_misspelt_is_reported_with_the_nearest_name_and_that_of_the_eager_program() -> None:
    found, report = dumped(dump_list=[{"model_name": "scor"}])
    assert not found
    (text,) = report.warnings
    assert "no model is called 'scor'" in text
    assert "'score'" in text
    assert "'eager'" in text
