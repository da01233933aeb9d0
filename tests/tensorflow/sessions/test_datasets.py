"""Data sets that sessions read: the operators of their functions run in threads of the runtime, and are listed as `not observed`."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.tensorflow.sessions.recording import recorded, same, v1

v1.disable_eager_execution()
v1.disable_control_flow_v2()


def numbers():
    for number in range(20):
        yield np.float32(number)


def data():
    return (
        tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.float32))
        .map(tf.sin, num_parallel_calls=2)
        .flat_map(lambda x: tf.data.Dataset.from_tensors(x).map(tf.exp))
        .batch(2)
    )


def initialisable():
    iterator = v1.data.make_initializable_iterator(data())

    def start(session):
        session.run(iterator.initializer)
        return {}

    return iterator, start


def one_for_several():
    iterator = v1.data.Iterator.from_structure(tf.float32, [None])
    initializer = iterator.make_initializer(data())

    def start(session):
        session.run(initializer)
        return {}

    return iterator, start


def by_name():
    own = v1.data.make_initializable_iterator(data())
    handle = v1.placeholder(tf.string, [], name="which")

    def start(session):
        session.run(own.initializer)
        return {handle: session.run(own.string_handle())}

    return v1.data.Iterator.from_string_handle(handle, tf.float32, [None]), start


def listed(found, why="not observed"):
    return {name for name, reason in found.skips().items() if reason == why}


def test_functions_behind_iterators_are_listed() -> None:
    for way in (initialisable, one_for_several, by_name):
        v1.reset_default_graph()
        iterator, start = way()
        doubled = iterator.get_next() * 2.0

        def program(start=start, doubled=doubled):
            with v1.Session() as session:
                fed = start(session)
                return [session.run(doubled, fed) for _ in range(3)]

        plain = program()
        with recorded() as found:
            answers = program()
        assert same(plain, answers), (plain, answers)
        names = listed(found)
        types = {name.rpartition("/")[2].partition("_")[0] for name in names}
        assert {"Sin", "Exp"} <= types, (way.__name__, names)
        assert not [name for name in names if "PyFunc" in name or "Dataset" in name.rpartition("/")[2]], names


def test_functions_of_a_data_set_that_is_read_once_are_listed() -> None:
    read = v1.data.make_one_shot_iterator(tf.data.Dataset.range(4).map(lambda x: x * 3)).get_next()
    with recorded() as found, v1.Session() as session:
        assert [session.run(read + 1) for _ in range(2)] == [1, 4]
    assert any(name.endswith("/mul") for name in listed(found)), found.skips()


def test_functions_of_a_data_set_that_is_reduced_are_listed() -> None:
    total = tf.data.Dataset.range(4).map(lambda x: x * 3).reduce(np.int64(0), lambda state, each: state - each)
    with recorded() as found, v1.Session() as session:
        assert session.run(total) == -18
    types = {name.rpartition("/")[2] for name in listed(found)}
    assert {"mul", "sub"} <= types, found.skips()


def test_a_step_without_data_sets_lists_none() -> None:
    _, start = initialisable()
    y = tf.constant([1.0, 2.0]) * 3.0
    with recorded() as found, v1.Session() as session:
        start(session)
        session.run(y)
    assert not listed(found), found.skips()
