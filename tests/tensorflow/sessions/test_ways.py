"""Ways to run a session, and what counts as an iteration."""

# The programs of the cases are written as users write them, without types.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="no-untyped-def, untyped-decorator, misc"

from __future__ import annotations

import os
import tempfile
import threading

import numpy as np
import tensorflow as tf

from opdump.plan import StepSet
from tests.tensorflow.sessions.recording import recorded, same, v1

v1.disable_eager_execution()
X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def model(lr=0.1, global_step=False):
    x = v1.placeholder(tf.float32, [None, 8], name="x")
    w = v1.get_variable("w", initializer=np.full((8, 1), 0.5, np.float32), use_resource=True)
    loss = tf.reduce_sum(tf.square(tf.matmul(x, w, name="mm")), name="loss")
    step = v1.train.get_or_create_global_step() if global_step else None
    train = v1.train.GradientDescentOptimizer(lr / 100).minimize(loss, global_step=step)
    return x, w, loss, train


def raised_by(act, kinds):
    """The name of the raised error; empty if there is none."""
    try:
        act()
    except kinds as error:
        return type(error).__name__
    return ""


def plain_and_recorded(program, steps=None, **plan):
    """Run a program twice, each time in a new graph; returns (recorded, answer)."""
    with tf.Graph().as_default():
        plain = program()
    with recorded(steps, **plan) as found, tf.Graph().as_default():
        captured = program()
    assert same(plain, captured), ("answers differ", plain, captured)
    return found, captured


def steps_of_models(found):
    """For each model that wrote something, in the order of model numbers, its steps."""
    models: dict[int, list[int]] = {}
    for number, step in found.steps():
        models.setdefault(number, []).append(step)
    return list(models.values())


def test_eval_and_the_run_of_an_operation_are_steps() -> None:
    def program():
        x, w, loss, train = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            train.run({x: X})
            answers = [loss.eval({x: X}), w.eval()]
            train.run({x: X}, session=session)
            return [*answers, loss.eval({x: X})]

    found, _ = plain_and_recorded(program)
    assert steps_of_models(found) == [[0, 1], [0, 1]], steps_of_models(found)
    assert found.not_steps == {"initialisation": 1, "reading": 1}, found.not_steps


def test_an_interactive_session_is_recorded() -> None:
    def program():
        x, _, loss, train = model()
        session = v1.InteractiveSession()
        v1.global_variables_initializer().run()
        train.run({x: X})
        answer = loss.eval({x: X})
        session.close()
        return answer

    found, _ = plain_and_recorded(program)
    assert steps_of_models(found) == [[0], [0]]


def test_callables_of_a_session_are_recorded() -> None:
    def program():
        x, w, loss, train = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            both = session.make_callable([train, loss], [x])
            answers = [both(X)[1] for _ in range(4)]
            options = session.make_callable({"loss": loss}, [x], accept_options=True)
            metadata = v1.RunMetadata()
            answers.append(
                options(X, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata=metadata)
            )
            assert len(metadata.step_stats.dev_stats) > 0, "metadata of a callable"
            read = session.make_callable(tf.reduce_sum(w * 2.0))
            return [*answers, read()]

    found, _ = plain_and_recorded(program, StepSet.of(0, 2))
    assert steps_of_models(found) == [[0, 2], [0], [0]], steps_of_models(found)


def test_callables_made_from_options_are_recorded() -> None:
    from tensorflow.core.protobuf import config_pb2

    def program():
        x, _, loss, train = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            options = config_pb2.CallableOptions(feed=[x.name], fetch=[loss.name], target=[train.name])
            call = session._make_callable_from_options(options)
            return [call(X) for _ in range(3)]

    found, _ = plain_and_recorded(program)
    assert steps_of_models(found) == [[0, 1, 2]], steps_of_models(found)


def test_a_monitored_training_session_has_the_steps_of_its_loop() -> None:
    def program():
        folder = tempfile.mkdtemp()
        x, _, loss, train = model(global_step=True)
        v1.summary.scalar("loss", loss)
        hooks = [
            v1.train.StopAtStepHook(5),
            v1.train.LoggingTensorHook({"loss": loss}, every_n_iter=2),
            v1.train.NanTensorHook(loss),
            v1.train.CheckpointSaverHook(folder, save_steps=2),
        ]
        # No summaries: a hook that fetches one has no value for the placeholder.
        with v1.train.MonitoredTrainingSession(
            hooks=hooks, checkpoint_dir=folder, save_summaries_steps=None
        ) as session:
            answers = []
            while not session.should_stop():
                answers.append(session.run([train, loss], {x: X})[1])
        return answers

    found, answers = plain_and_recorded(program, StepSet.of(0, 3))
    assert len(answers) == 5
    assert steps_of_models(found) == [[0, 3]], ("hooks change the signature", steps_of_models(found))
    assert np.allclose(found.value("loss", 3), answers[3])


def test_step_functions_of_a_monitored_session_are_recorded() -> None:
    def program():
        x, _, loss, train = model(global_step=True)
        with v1.train.MonitoredSession(v1.train.ChiefSessionCreator(v1.train.Scaffold())) as session:
            return [
                session.run_step_fn(lambda step_context: step_context.session.run([train, loss], {x: X})[1])
                for _ in range(3)
            ]

    found, _ = plain_and_recorded(program)
    assert [0, 1, 2] in steps_of_models(found), steps_of_models(found)


def test_a_session_of_a_supervisor_is_recorded() -> None:
    def program():
        x, _, loss, train = model(global_step=True)
        supervisor = v1.train.Supervisor(logdir=None, summary_op=None)
        with supervisor.managed_session() as session:
            return [session.run([train, loss], {x: X})[1] for _ in range(3)]

    found, _ = plain_and_recorded(program)
    assert steps_of_models(found) == [[0, 1, 2]], (steps_of_models(found), found.not_steps)


def test_each_session_and_each_graph_has_steps_of_its_own() -> None:
    def program():
        answers = []
        for scale in (1.0, 2.0):
            with tf.Graph().as_default():
                x, _, loss, train = model()
                first, second = v1.Session(), v1.Session()
                for session in (first, second):
                    session.run(v1.global_variables_initializer())
                answers += [session.run([train, loss], {x: X * scale})[1] for session in (first, second, first)]
                first.close()
                second.close()
        return answers

    found, _ = plain_and_recorded(program)
    assert steps_of_models(found) == [[0, 1], [0], [0, 1], [0]], steps_of_models(found)


def test_runs_in_several_threads_are_steps_of_their_models() -> None:
    with recorded() as found, tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [], name="x")
        fetches = [tf.square(x + number, name=f"square_{number}") for number in range(4)]
        with v1.Session() as session:
            wrong = []

            def work(number):
                for value in range(8):
                    answer = session.run(fetches[number], {x: value})
                    if answer != (value + number) ** 2:
                        wrong.append((number, value, answer))

            threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not wrong, wrong
    assert steps_of_models(found) == [list(range(8))] * 4, steps_of_models(found)
    for number in range(4):
        for step in range(8):
            assert found.value(f"square_{number}", step) == (step + number) ** 2


def test_threads_that_fetch_the_same_share_the_steps_of_one_model() -> None:
    v1.disable_resource_variables()
    try:
        with recorded() as found, tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [], name="x")
            w = v1.get_variable("w", initializer=np.float32(2.0))
            fetched = tf.multiply(x, w, name="product")
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                wrong: list[str] = []

                def work(number):
                    answers = [session.run(fetched, {x: value + number * 10}) for value in range(8)]
                    wrong.extend(set(answers) - {2.0 * (value + number * 10) for value in range(8)})

                threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        assert not wrong, wrong
        numbers = sorted(float(value) for step in range(24) for value in found.values("product", step))
        assert numbers == sorted(2.0 * (value + number * 10) for number in range(3) for value in range(8)), numbers
        assert steps_of_models(found) == [list(range(24))], steps_of_models(found)
    finally:
        v1.enable_resource_variables()


def test_options_and_metadata_of_the_program_are_left_unchanged() -> None:
    with recorded() as found, tf.Graph().as_default():
        x, _, loss, train = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            metadata = v1.RunMetadata()
            options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
            session.run([train, loss], {x: X}, options, metadata)
            assert len(metadata.step_stats.dev_stats) > 0
            assert len(metadata.partition_graphs) > 0
            assert not options.debug_options.debug_tensor_watch_opts, "the program's options were changed"
    assert len(found.values("loss")) == 1


def test_errors_of_the_program_are_its_own() -> None:
    def program():
        x, _, loss, train = model()
        item = v1.data.make_one_shot_iterator(tf.data.Dataset.range(2)).get_next()
        told = []
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {x: X})
            attempts = (
                lambda: session.run(train),
                lambda: session.run(train, {x: X[:, :3]}),
                lambda: session.run("nothing"),
            )
            told += [raised_by(attempt, (tf.errors.InvalidArgumentError, ValueError)) for attempt in attempts]
            session.run(train, {x: X})
            taken: list[object] = []
            try:
                while True:
                    taken.append(session.run(tf.add(item, 1, name="taken")) if not taken else session.run("taken:0"))
            except tf.errors.OutOfRangeError:
                told.append("end")
            return told, taken, session.run(loss, {x: X})

    found, answer = plain_and_recorded(program)
    assert answer[0] == ["InvalidArgumentError", "ValueError", "ValueError", "end"], answer[0]
    assert steps_of_models(found) == [[0, 1], [0, 1], [0]], steps_of_models(found)


def test_an_interrupted_run_leaves_readable_files() -> None:
    def stop():
        raise KeyboardInterrupt

    with recorded() as found, tf.Graph().as_default():
        x, _, loss, train = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run([train, loss], {x: X})
            original = found.capture.recorder.after_op
            found.capture.recorder.after_op = lambda *_: stop()  # type: ignore[method-assign]  # Ctrl-C
            try:
                session.run([train, loss], {x: X})
                raise AssertionError("no interrupt")
            except KeyboardInterrupt:
                found.capture.recorder.after_op = original  # type: ignore[method-assign]  # as it was
            session.run([train, loss], {x: X})
    assert len(found.values("loss", 0)) == 1, found.catalog.problems
    assert not found.catalog.problems, found.catalog.problems


def test_a_session_that_is_never_closed_is_recorded() -> None:
    with recorded() as found, tf.Graph().as_default():
        x, _, loss, train = model()
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        session.run([train, loss], {x: X})
    assert len(found.values("loss", 0)) == 1
    session.close()


def test_a_forked_child_changes_nothing() -> None:
    with recorded() as found, tf.Graph().as_default():
        x, _, loss, train = model()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run([train, loss], {x: X})
            if (child := os.fork()) == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            session.run([train, loss], {x: X})
    assert steps_of_models(found) == [[0, 1]]


def test_runs_that_train_or_update_are_steps_and_others_are_not() -> None:
    def program():
        folder = tempfile.mkdtemp()
        x, w, loss, train = model(global_step=True)
        v1.summary.scalar("loss", loss)
        merged = v1.summary.merge_all()
        saver = v1.train.Saver()
        metric, update = v1.metrics.mean(loss)
        custom = w.assign(w - 0.01 * tf.gradients(loss, w)[0])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(v1.local_variables_initializer())
            session.run(train, {x: X})  # model 1
            session.run([merged, train], {x: X})  # model 2
            session.run(merged, {x: X})
            path = saver.save(session, os.path.join(folder, "m"))
            saver.restore(session, path)
            session.run(v1.train.get_global_step())
            session.run(w)
            session.run(update, {x: X})  # model 3
            session.run(update, {x: X})
            session.run(metric)
            session.run(custom, {x: X})  # model 4
            session.run(custom.op, {x: X})  # model 5
            print(session.run(loss, {x: X}))  # model 6
            return session.run(w)

    found, _ = plain_and_recorded(program)
    assert list(steps_of_models(found))[:3] == [[0], [0], [0, 1]], (steps_of_models(found), found.not_steps)
    names = [sorted({op.op_name for op in found.ops() if op.graph_id == number}) for number in dict(found.steps())]
    assert any("mean/AssignAddVariableOp" in each for each in names), names
    for purpose, count in {"initialisation": 2, "summary": 1, "save": 1, "restore": 1}.items():
        assert found.not_steps.get(purpose) == count, (purpose, found.not_steps)


def test_initialisers_of_iterators_and_tables_are_no_steps() -> None:
    def program():
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(3))
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [5, 6], tf.int64, tf.int64), -1)
        out = table.lookup(iterator.get_next())
        with v1.Session() as session:
            session.run(v1.tables_initializer())
            session.run(iterator.initializer)
            answers = [session.run(out) for _ in range(3)]
            session.run(iterator.initializer)
            return [*answers, session.run(out)]

    found, answers = plain_and_recorded(program)
    assert list(map(int, answers)) == [5, 6, -1, 5]
    assert steps_of_models(found) == [[0, 1, 2, 3]], steps_of_models(found)
    assert found.not_steps == {"initialisation": 3}, found.not_steps
