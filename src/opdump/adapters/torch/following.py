"""Fast path for repeated steps: an operator that matches the recorded template costs a time stamp and a summary, not a record.

A training runs the same operators at the same places on the same kind of tensors in every step. So one step is learned while it is
recorded, operator by operator: the place in the program, the arguments, the tensors read and written, and where these lie in memory. In
later steps, the compiled `Follower` compares each operator with the learned one. While they are equal, only a time stamp, the summaries
and arguments that change in every step (a learning rate) are kept, in columns (`TemplateRun`). After any other difference, `CaptureMode`
records as usual, one operator or the rest of the step:

    learning     CaptureMode records, and what it records is learned
    following    the follower compares; CaptureMode is not called
    paused       CaptureMode records one operator; if it is the expected one, following continues
    off          CaptureMode records until the step ends

Nothing is predicted: the follower reuses an earlier record only after it has found the operator equal. While it learns, what it sees of
tensors is compared with what the reader saw.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar

import numpy as np
import torch

from opdump.adapters.torch.distributed import Collectives
from opdump.adapters.torch.isolation import hidden_from_torch_modes
from opdump.adapters.torch.lessons import Event, FollowedElements, Kind, Lesson, Lessons, Named, Outcome, are_alike
from opdump.adapters.torch.memory import PLAIN_CLASSES, Provenance, Storages
from opdump.adapters.torch.naming import COMPARABLE, Link, Naming, Site, arguments_of
from opdump.adapters.torch.private_names import (
    RUN_BACKWARD,
    autograd_node,
    dispatch_depth,
    graph_task,
    hold_weakly,
    sequence_number,
)
from opdump.adapters.torch.reader import TensorReader
from opdump.adapters.torch.schemas import Found, OperatorSchema, tensors_among, tensors_returned
from opdump.adapters.torch.training import TrainingObserver
from opdump.interpreter.critical_sections import not_interrupted
from opdump.kernels import NATIVE_FOLLOWER
from opdump.recorder import Elements, LiveTensor, Recorder, TensorSnapshot, isolated_as_a_whole
from opdump.records import OpRecord
from opdump.step_table import TemplateRun

# The state of an operator while it runs.


class Running:
    """An operator, from just before it runs until just after."""

    __slots__ = ("inputs", "link", "op", "site")

    def __init__(self, op: OpRecord, site: Site, link: Link | None) -> None:
        self.op = op
        self.site = site
        self.link = link
        self.inputs: list[LiveTensor] = []


# What `Following` needs from the recorder of the operators that it does not follow.


class RecordsOperators(Protocol):
    """What a `CaptureMode` is to `Following`."""

    follow: Callable[..., Any] | None

    @property
    def recorder(self) -> Recorder: ...
    @property
    def observer(self) -> TrainingObserver: ...
    @property
    def naming(self) -> Naming: ...
    @property
    def provenance(self) -> Provenance: ...
    @property
    def storages(self) -> Storages: ...
    @property
    def collectives(self) -> Collectives: ...
    def schema(self, func: Any) -> OperatorSchema: ...
    def fails(self, running: Running, schema: OperatorSchema, error: BaseException) -> object: ...
    def end(
        self,
        running: Running,
        schema: OperatorSchema,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        returned: Callable[[], list[Found]],
        result: Any,
    ) -> object: ...


# Learns and follows steps.

State = Literal["learning", "following", "paused", "off"]
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def _alone(
    method: Callable[Concatenate[Following, _Given], _Result],
) -> Callable[Concatenate[Following, _Given], _Result]:
    """Decorate a method so that it runs in one thread at a time. It takes the recorder's lock, because it calls the recorder, which calls back."""

    @wraps(method)
    def call(following: Following, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        with following.recorder.lock:
            return method(following, *args, **kwargs)

    return call


class Following:
    """Learns and follows the steps of one thread: the one that ends them."""

    def __init__(self, mode: RecordsOperators, skipped: Callable[..., object]) -> None:
        """`skipped` records an operator without a kernel that has run (`WithoutKernel.ran`)."""
        self._mode = mode
        self._skipped = skipped
        self.recorder = self._recorder = mode.recorder
        self.observer = mode.observer
        self._naming = mode.naming
        self._sites = mode.naming.sites
        assert isinstance(mode.recorder.reader, TensorReader), "`CaptureMode.takes_runs` asks first"
        self._reader = mode.recorder.reader
        self.state: State = "off"
        self._owner = threading.get_ident()
        self._lessons = Lessons()
        self._lesson = Lesson(-1)
        """The lesson that is being learned or followed."""
        self._was_followed = False
        self._event: Event | None = None
        """The running operator that is being learned."""
        self._taken = 0
        """The number of tensors taken when it began."""
        self._is_spoilt = False
        """Whether the lesson being learned is incomplete."""
        self._synced = 0
        """Events before this one are counted in the sites."""
        self._pauses = 0
        self.followed_events = 0
        """The number of operators followed in this step."""
        self._taken_over: Running | None = None
        """The running operator, if CaptureMode had to take it over from the follower."""
        self._in_flight: tuple[int, list[int], list[str | None] | None, int] | None = None
        """Of an operator that was running at the last hand-over: its time stamp, the rows and element files of its inputs, and its step."""
        self._given: dict[int, Mapping[str, Any]] = {}
        """The arguments that differ from the learned ones, by the index of the event."""
        # The compiled follower reads these attributes by name.
        self.dispatch_depth, self.graph_task, self.autograd_node = dispatch_depth, graph_task, autograd_node
        self.sequence_number, self.is_grad_enabled, self.unseen = (
            sequence_number,
            torch.is_grad_enabled,
            hidden_from_torch_modes,
        )
        self.hold_weakly, self.engine, self.comparable = hold_weakly, RUN_BACKWARD, COMPARABLE
        self.is_ours, self.is_mine = mode.naming.stacks.is_ours, mode.naming.stacks.is_mine
        self.callers_of = mode.naming.stacks.callers_of
        provenance, storages = mode.provenance, mode.storages
        self.note, self.source_of = provenance.note, provenance.source_by_key
        self.sources, self.parts = provenance.sources, provenance.parts
        self.first, self.held, self.unwritten = storages.first, storages.held, provenance.unwritten
        self.parameter_scopes = mode.naming.parameter_scopes
        self.storages = storages
        self.clock, self.collectives = mode.recorder.clock, mode.collectives
        assert NATIVE_FOLLOWER is not None, "`is_available` asks first"
        plan = mode.recorder.plan
        self._follower = NATIVE_FOLLOWER(
            self._reader.table,
            PLAIN_CLASSES,
            self._reader.digests,
            *self._reader.seen_and_place,
            plan.inputs,
            plan.outputs,
            plan.saves_tensors,
            self,
        )
        self._elements = FollowedElements(mode.recorder, self._follower) if plan.saves_tensors else None
        self.follow: Callable[..., Any] = self._follower.follow
        self.missed: Final = self._follower.missed
        mode.recorder.gather = self.gather
        mode.recorder.when_lost = self._lost

    # Steps

    @not_interrupted
    @_alone
    def end_step(self) -> None:
        """A step has ended and was written."""
        if threading.get_ident() != self._owner:
            self._leave()
            self._owner = threading.get_ident()
        self.followed_events += max(0, self._follower.place - self._synced) if self.state == "following" else 0
        self._lessons.ended(self._outcome())
        if self._follower.is_following:
            self._naming.counters = self._follower.suspend()

    def _outcome(self) -> Outcome:
        """How the step went."""
        events, place = self._lesson.events, self._follower.place
        if self.state == "learning":
            # Learn again unless more than half of the events can be followed.
            useful = sum(event.kind is not Kind.OTHER for event in events)
            return "stale" if self._is_spoilt or self._event is not None or useful * 2 <= len(events) else "learned"
        if self.state != "following" or place < len(events):
            return "other" if self._was_followed else "off"
        # Learn again if an operator ran at another place, or if more than one event in eight led to a pause.
        return "stale" if self._follower.missed_place or self._pauses * 8 > len(events) else "same"

    @not_interrupted
    @_alone
    def next_step(self) -> None:
        """The next step begins."""
        self._synced = self._pauses = self.followed_events = 0
        self._event = self._in_flight = self._taken_over = None
        self._given = {}
        self._is_spoilt = False
        links = self._naming.links
        nodes = links.mine()
        chosen = None if links.has_several_threads else self._lessons.choose()
        for number in self._lessons.dropped():
            self._follower.forget(number)
        if chosen is None:
            self._set("off")
            return
        self._lesson = chosen
        self._follower.start(chosen.number, self.observer.current(), nodes, *self._naming.counters)
        if chosen.events:
            self._set("following")
        else:
            self._follower.suspend()
            self._set("learning")

    def _set(self, state: State) -> None:
        self.state = state
        self._was_followed = state in ("following", "paused") or (state == "off" and self._was_followed)
        self._mode.follow = self.follow if state == "following" else None

    @_alone
    def close(self) -> None:
        """The capture has ended: the follower releases this object. An operator may be running."""
        self._set("off")
        self.recorder.gather = self.recorder.when_lost = lambda: None
        self._follower.close()

    # Called while CaptureMode records

    def pause(self) -> None:
        """CaptureMode is about to record something itself."""
        if self.state != "off":
            self._pause()

    @not_interrupted
    @_alone
    def _pause(self) -> None:
        if threading.get_ident() != self._owner or self._follower.is_in_operator:
            self._leave()
        elif self.state == "following":
            self._suspend()
            self._hand_over()
            # Arguments and deferral (follower.cpp, `differs`) may differ in every step, so learning again would not help.
            if self._follower.difference not in ("arguments", "step"):
                self._pauses += 1
            self._set("paused")

    def passed(self, site: Site | None) -> None:
        """CaptureMode has recorded an operator, or only counted it (no site). If it is the expected one, following continues."""
        if self.state == "paused":
            self._passed(site)

    @_alone
    def _passed(self, site: Site | None) -> None:
        place = self._follower.place
        order, timestamp = self._naming.counters
        if place < len(self._lesson.events):
            event = self._lesson.events[place]
            if event.site is site and event.order == order - 1 and (site is not None or event.kind is Kind.QUICK):
                self._synced = place + 1
                self._follower.resume(place + 1, self._naming.links.mine(), order, timestamp)
                self._set("following")
                return
        self._leave()

    def gather(self) -> None:
        """Pass to the recorder what was followed since the last call, including a running operator."""
        if self.state == "following":
            self._gather()

    @not_interrupted
    @_alone
    def _gather(self) -> None:
        if self._follower.is_in_operator:
            self._leave()
        elif self.state == "following":
            self._hand_over()

    def _hand_over(self) -> None:
        if self._elements is not None:
            self._elements.file(self._lesson)
        first, last, step, timestamps, rows, counted, taken_files = self._follower.take()
        files: list[str | None] | None = None if self._elements is None else taken_files
        for kind, count in counted.items():
            self.recorder.count_op(kind, count)
        if not timestamps:
            return
        template = self._lesson.template(first, last)
        numbers = np.frombuffer(rows, np.int64)
        ops, slots = len(template.ops), len(template.slots)
        if len(timestamps) > ops:
            self._in_flight = timestamps[ops], numbers[slots:].tolist(), files and files[slots:], step
        if ops:
            files = files and files[:slots]
            begin = self._lesson.events[first].number
            given = {
                self._lesson.events[place].number - begin: self._given.pop(place)
                for place in [*self._given]
                if first <= place < last
            }
            self.recorder.add_run(
                TemplateRun(template, step, timestamps[:ops], numbers[:slots], files=files, arguments=given)
            )

    def _leave(self) -> None:
        """From now on until the step ends, CaptureMode records."""
        if self.state == "following":
            if self._follower.is_in_operator:
                self._taken_over = self._take_over()
            else:
                self._suspend()
                self._hand_over()
        self._set("off")

    @not_interrupted
    @_alone
    def _lost(self) -> None:
        """An operator was not recorded, so a lesson would be incomplete."""
        if threading.get_ident() == self._owner:
            self._leave()

    def _suspend(self) -> None:
        """Bring all other counters of operators up to the follower's position."""
        if not self._follower.is_following:
            return
        place = self._follower.place
        calls = self._follower.calls
        self.followed_events += place - self._synced
        self._naming.counters = self._follower.suspend()
        for number in range(self._synced, place):
            self._count(self._lesson.events[number], calls)
        self._synced = place

    def _count(self, event: Event, calls: Sequence[int]) -> None:
        if event.named is not None:
            graph_id, scope, op_type, call, phase, where = event.named
            site = self._sites.next(graph_id, scope, op_type, calls[call], phase, where)
            assert site is event.site, "the follower followed the wrong operator"
        if event.site is not None:
            event.site.next_occurrence(self._sites.step)

    def _take_over(self) -> Running:
        """Take the running operator over from the follower: CaptureMode records the rest of it."""
        follower = self._follower
        place, calls = follower.place, follower.calls
        self._suspend()
        event = self._lesson.events[place]
        assert event.op is not None
        self._count(event, calls)
        self._synced = place + 1
        self._hand_over()
        assert self._in_flight is not None, "a running operator has a time stamp"
        timestamp, rows, files, step = self._in_flight
        self._in_flight = None
        arguments = self._given.pop(place, event.op.arguments)
        op = replace(event.op, timestamp=timestamp, step=step, arguments=arguments)
        taken = []
        for slot, (known, row) in enumerate(zip(event.tensors[: event.inputs], rows, strict=True)):
            entry = TensorSnapshot(known.dtype, known.shape, known.data_size, known.skip)
            entry.belongs(op, known.io, known.slot, known.argument, known.source)
            entry.row, entry.table, entry.memory = row, None if row < 0 else self._reader.table, known.memory
            entry.elements = Elements.filed_as(files[slot]) if files else None
            taken.append(entry)
        self.recorder.add_single(op, taken)
        assert event.site is not None
        return Running(op, event.site, event.link)

    # Called by the follower

    def given(self, place: int, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> None:
        """The non-tensor arguments of an operator differ from the learned ones."""
        site = self._lesson.events[place].site
        assert site is not None, "an operator with a kernel has one"
        self._given[place] = arguments_of(site, self._mode.schema(func), args, kwargs or {})

    @isolated_as_a_whole
    def release(self) -> None:
        """The deferred operators belong to the running step."""
        self.recorder.release()

    @isolated_as_a_whole
    @_alone
    def file_elements(self) -> None:
        """Write the elements that the follower has copied or refers to in place."""
        assert self._elements is not None, "the follower keeps elements only in this case"
        self._elements.file(self._lesson)

    def cut_off(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, result: Any) -> None:
        """The running operator has returned something unexpected."""
        kwargs = kwargs or {}
        running, schema = self._running(func, args, kwargs)
        self._mode.end(running, schema, args, kwargs, lambda: tensors_returned(schema, args, kwargs, result), result)

    def failed(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, error: BaseException) -> None:
        """The running operator has failed."""
        running, schema = self._running(func, args, kwargs or {})
        self._mode.fails(running, schema, error)

    def skipped(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, result: Any) -> None:
        """An operator without a kernel has run, but something else happened meanwhile."""
        self._skipped(self._mode.schema(func), args, kwargs or {}, result, func)

    def broke(self, error: BaseException) -> None:
        """The follower had an internal error: CaptureMode records from now on."""
        self._lessons.give_up()
        if os.environ.get("OPDUMP_FOLLOW") == "strict":  # set by tests
            raise error

    @not_interrupted
    @_alone
    def _running(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Running, OperatorSchema]:
        schema = self._mode.schema(func)
        running, self._taken_over = self._taken_over, None
        if running is None:
            running = self._take_over()
            self._pauses += 1
            self._set("paused")
        inputs: Sequence[Found] = [*tensors_among(schema.tensors, args, kwargs)]
        running.inputs = [(slot, argument, tensor, "", "") for slot, argument, tensor in inputs]
        return running, schema

    # Values

    def value(self, name: str, graph_id: int, tensor: torch.Tensor) -> bool:
        """Whether this is the expected value, with the learned properties. If so, it is recorded."""
        return self.state == "following" and bool(self._follower.follow_value(name, graph_id, tensor))

    def learns_value(self, site: Site, op: OpRecord, tensor: torch.Tensor) -> None:
        """CaptureMode has recorded a value."""
        if self.state != "learning":
            self.passed(site)
            return
        taken = self.recorder.taken[-1:]
        event = Event(Kind.VALUE, op.order, site, op=op, tensors=taken)
        self._learned(event, self._follower.learn_value(op.op_name, op.graph_id, tensor, op.order))

    # Called while learning

    def begins(self) -> None:
        """CaptureMode is about to read the inputs of an operator."""
        self._taken = len(self.recorder.taken)

    def looks(
        self,
        func: Any,
        schema: OperatorSchema,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        running: Running,
    ) -> None:
        """CaptureMode has read the inputs, and the operator is about to run."""
        op: OpRecord = running.op
        event = Event(Kind.KERNEL, op.order, running.site, self._numbered(), running.link, op)
        is_whole = func is not None and not op.skip and running.site.described
        constants = {
            slot for slot, _, _, source, _ in running.inputs if source and source == self.recorder.constant_at(op, slot)
        }
        if not is_whole or not self._follower.look(Kind.KERNEL, func, schema, args, kwargs, op.order, constants):
            event.kind = Kind.OTHER
        if self._event is not None:  # an operator within another
            self._is_spoilt = True
        self._event = event

    def learns(
        self, site: Site, args: tuple[Any, ...], kwargs: Mapping[str, Any], outputs: Sequence[Found], result: Any
    ) -> None:
        """The operator has run, and CaptureMode has read its outputs."""
        if self.state != "learning":
            self.passed(site)
            return
        event, self._event = self._event, None
        if event is None or event.site is not site:
            self._is_spoilt = True
            return
        if event.kind is Kind.OTHER:
            self._learned(event, None)
            return
        taken = self.recorder.taken[self._taken :]
        event.tensors, event.inputs = taken, sum(entry.io == "input" for entry in taken)
        sources = [site.source(slot) for slot, _, _ in outputs]
        self._learned(event, self._follower.learn(args, kwargs, result, event.link, sources))

    def learns_listed(
        self,
        func: Any,
        schema: OperatorSchema,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        site: Site | None,
        link: Any = None,
        *,
        is_listed_anew: bool = False,
    ) -> None:
        """An operator without a kernel has run. `site` is None if it was only counted, not named."""
        if self.state != "learning":
            self.passed(site)
            return
        order = self._naming.counters[0] - 1
        kind = Kind.QUICK if site is None else Kind.ALLOCATION if schema.kind == "allocation" else Kind.LISTED
        event = Event(kind, order, site, None if site is None else self._numbered(), link)
        facts = None
        if (
            func is not None
            and not is_listed_anew
            and self._follower.look(kind, func, schema, args, kwargs, order, set())
        ):
            found = tensors_returned(schema, args, kwargs, result) if kind is Kind.ALLOCATION else []
            sources = [site.source(slot) for slot, _, _ in found] if site is not None else []
            facts = self._follower.learn(args, kwargs, result, link, sources)
        self._learned(event, facts)

    def _numbered(self) -> Named:
        """The last arguments of `Sites.next`, with the call replaced by its number in this step."""
        graph_id, scope, op_type, call, phase, where = self._naming.named
        return graph_id, scope, op_type, self._follower.call_number(call), phase, where

    def _learned(self, event: Event, facts: Sequence[tuple[Any, ...]] | None) -> None:
        """`facts` is what the follower saw; None if the event cannot be followed."""
        if facts is None:
            event.kind = Kind.OTHER
            self._follower.learn_other()
        elif event.kind in (Kind.KERNEL, Kind.VALUE) and not are_alike(facts, event.tensors, self._reader.table):
            event.kind = Kind.OTHER
            self._follower.refuse()
        self._lesson.learned(event)


def is_available() -> bool:
    """Whether the fast path is available: with compiled kernels, unless `OPDUMP_FOLLOW=0` disables it."""
    return NATIVE_FOLLOWER is not None and os.environ.get("OPDUMP_FOLLOW") != "0"
