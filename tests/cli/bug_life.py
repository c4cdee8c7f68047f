"""Bug reports about how long a state lives and which moment it stands for: numbers 9 to 18 of docs/bug-reports.md."""

import numpy as np
import toy_faults as faults
from explain_case import ABSENT, Want, everywhere
from toy_engine import Hooks, run_engine
from toy_faults import BOTH, CONV, REC
from toy_step import Model, f32, to_bf16
from toy_trace import COPY, ZERO, add_event, add_load, stream_of

STEPS = 6


def poisoned(model, block):
    """NaNs that carry the block's number: quiet, in the f32 state's low bits and in the bf16 conv state's."""
    rec = np.full((model.HV, model.V, model.K), 0x7FC00000 | block, np.uint32).view(f32)
    conv = np.full((model.W - 1, model.dim), (0x7FC0 | block) << 16, np.uint32).view(f32)
    return rec, conv


def poison_pool(cases, _):
    """9: a block that a new request gets is not zeroed, and holds poison."""
    model = Model()
    index = [[1, 0], [1, 0], [1, 4], [1, 4], [1, 4], [1, 4]]
    s = stream_of(1, model, index)
    add_load(s, 1, -1, 4, poisoned(model, 4))
    add_event(s, 2, -1, 4, ZERO)
    # The trace knows of the poison: the lost reset and the poison that came out of it are one fault.
    cases.run(
        "#56524 poison not zeroed",
        s,
        faults.loses_event(2, 4),
        [Want(("poison-read", "reset-missing"), step=2, block=4)],
        also=("poison-read", "reset-missing"),
    )
    s = stream_of(2, model, index, start="zero")

    def read(place, value):
        return poisoned(model, 4) if place.is_at(2, None, 1) else value

    # The trace says that the block was fresh zeros; what the engine read was never written by anybody.
    cases.run(
        "#56524 poison that the trace does not know",
        s,
        Hooks(read=read),
        [Want("poison-read", step=2, row=1)],
        also=("poison-read",),
    )
    cases.clean("#56524 zeroed in time", stream_of(3, model, index))


def aborted_copy(cases, _):
    """10: a block is published before the copy into it, which then fails."""
    s = stream_of(4, Model(), [[1, 0], [1, 0], [1, 3], [1, 3]])
    add_event(s, 2, -1, 3, COPY, 1)
    cases.run(
        "#30986 copy 1 to 3 failed", s, faults.loses_event(2, 3), [Want("reset-missing", step=2, block=3, layer=ABSENT)]
    )
    cases.clean("#30986 the copy was made", s)


def lost_prefill(cases, _):
    """11: the state that a prefill should have written is not there, or was written to the last batch's blocks."""
    s = stream_of(5, Model(), [[1, 0], [1, 0], [1, 3], [1, 3]], start="zero")
    for layer in (0, 1):
        add_load(s, 0, layer, 1, faults.random_state(11 + layer, s.model))
        add_load(s, 2, layer, 3, faults.random_state(21 + layer, s.model))
    cases.run(
        "#53051 the state write of a prefill is lost",
        s,
        faults.loses_event(2, 3),
        [Want(("reset-missing", "write-missing"), step=2, block=3)],
    )
    s = stream_of(6, Model(), [[3, 4], [3, 4], [1, 2], [1, 2], [1, 2]])
    hooks = faults.writes_block(2, 0, 0, 3) + faults.writes_block(2, 0, 1, 4)
    cases.run(
        "#55766 writes went to the previous batch's blocks",
        s,
        hooks,
        [Want("wrong-block", step=2, layer=0, row=0, block=3), Want("wrong-block", step=2, layer=0, row=1, block=4)],
    )


def wrong_checkpoint(cases, _):
    """13: a saved state is that of another token; and one that is right but for the rounding of what was saved."""
    s = stream_of(7, Model(), [[2, 4]] * STEPS)
    run = run_engine(s)
    faults.snapshot_of_position(run, s, 4, 0, 4, -2)
    cases.run(
        "#37836 checkpoint of two tokens before", s, None, [Want("wrong-position", step=4, layer=0, block=4)], run=run
    )
    s = stream_of(8, Model(), [[2, 0], [2, 0], [2, 3], [2, 3], [2, 3]])
    add_load(s, 2, 0, 3, faults.random_state(31, s.model))

    def event(place, value):
        if place.t != 2:
            return value
        rec, conv = place.stream.loads[place.event[4]]
        place.pool[place.layer, place.block] = (to_bf16(rec), conv)
        return False

    cases.run(
        "#33515 a hit restores what was saved in bf16",
        s,
        Hooks(event=event),
        [Want("state-store-bf16", step=2, layer=0)],
    )


def null_checkpoint(cases, _):
    """14: the boundary without a state is block 0, whose bytes are restored as if they were one."""
    s = stream_of(9, Model(), [[2, 0], [2, 0], [2, 3], [2, 3]])
    add_load(s, 2, 0, 3, faults.random_state(41, s.model))

    def event(place, value):
        if place.t == 2:
            place.pool[place.layer, place.block] = place.state(0)
            return False
        return value

    cases.run(
        "#53084 restored from the null block", s, Hooks(event=event), [Want("wrong-block", step=2, layer=0, block=0)]
    )


def went_on_from(moments):
    """The sentence about what a row's state and window stood for: exactly this."""

    def check(report):
        said = [m["says"].split("went on from ")[1] for m in report["mechanisms"] if "went on from " in m["says"]]
        return [] if said == [moments] else [f"went on from {said}, wanted {moments!r}"]

    return check


def accepted_column(cases, _):
    """15: after a verify step the state, the conv window, or both are those of one token before."""
    s = stream_of(10, Model(), [[1, 2]] * STEPS)
    clean = run_engine(s)
    # The stored window of one position before is also a window shifted by one column, filled from before it.
    conv = Want(("wrong-position", "conv-window-shift"), step=4, layer=0, row=1)
    rec = Want("wrong-position", step=4, layer=0, row=1)
    for what, part, wants, also, moments in (
        ("the state", REC, [rec], (), "recurrent at p-1, conv at p"),
        ("the window", CONV, [conv], (), "recurrent at p, conv at p-1"),
        ("both", BOTH, [rec], ("conv-window-shift",), "recurrent at p-1, conv at p-1"),
    ):
        fault = faults.reads_position(clean, 4, 0, 1, -1, part)
        cases.run(f"#40738 {what} of one token before", s, fault, wants, also=also, check=went_on_from(moments))
    # The state and the window each of another moment: two faults, and one line that says both.
    fault = faults.reads_position(clean, 4, 0, 1, -2, REC) + faults.reads_position(clean, 4, 0, 1, -1, CONV)
    cases.run("#40738 each of another token", s, fault, [rec, conv], check=went_on_from("recurrent at p-2, conv at p-1"))
    cases.run(
        "#40738 zeros shifted into the window",
        s,
        faults.shifts_window(4, 0, 1, -1),
        [Want("conv-window-shift", step=4, layer=0, row=1)],
    )


def rounded_store(cases, _):
    """18: the state is cast to the activations' type on store."""
    s = stream_of(11, Model(), [[1, 2]] * STEPS)
    cases.run(
        "#15865 f32 state stored as bf16", s, faults.computes(state_store="bf16"), [everywhere("state-store-bf16")]
    )


REPORTS = [
    ("9", poison_pool),
    ("10", aborted_copy),
    ("11", lost_prefill),
    ("13", wrong_checkpoint),
    ("14", null_checkpoint),
    ("15", accepted_column),
    ("18", rounded_store),
]
