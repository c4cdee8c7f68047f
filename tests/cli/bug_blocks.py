"""Bug reports about which block a row reads and writes: numbers 1 to 7 of docs/bug-reports.md."""

import numpy as np
import toy_faults as faults
from explain_case import Want, first_is
from toy_engine import Hooks, run_engine
from toy_faults import CONV
from toy_step import Model, f32
from toy_trace import stream_of, write_trace

STEPS = 4
FLOATS_OF_POISON = np.array([0x7FC10000], np.uint32).view(
    f32
)  # a NaN with a payload that no arithmetic makes; bf16 0x7FC1


def padded_graph(cases, _):
    """1: more graph rows than requests, padded with block 0, which is written although it names nothing."""
    index = [[3, 5, 0, 0]] * STEPS
    s = stream_of(1, Model(), index)
    # Both padded rows write it; the later one's state stays.
    hooks = faults.inactive_works(1, 0, 2, 0) + faults.inactive_works(1, 0, 3, 0)
    cases.run("#39064 padded rows write block 0", s, hooks, [Want("padded-row-wrote", step=1, layer=0, row=3, block=0)])
    cases.clean("#39064 padded with 0, block 0 untouched", s)
    s.index[s.index == 0] = -1
    cases.clean("#39064 padded with -1: the same", s)


def live_block_zero(cases, _):
    """2: block 0 live and the mark of padding at once; -1 remapped onto the last block."""
    live = Model(sentinel="minus_one")
    cases.clean("#93 block 0 is live under minus_one", stream_of(2, live, [[0, 2]] * STEPS))
    s = stream_of(3, live, [[3, -1]] * STEPS)
    cases.run(
        "#36885 -1 remapped onto the last block",
        s,
        faults.inactive_works(2, 1, 1, 5),
        [Want("padded-row-wrote", step=2, layer=1, row=1, block=5)],
    )
    cases.run(
        "#700 -1 clamped to a live block 0",
        s,
        faults.inactive_works(2, 1, 1, 0),
        [Want("padded-row-wrote", step=2, layer=1, row=1, block=0)],
    )
    # The other way round: the trace says that block 0 is live, the engine takes it for padding: zeros out, nothing
    # written. No id of the table says just that.
    s = stream_of(4, live, [[0, 2]] * STEPS)

    def skipped(place, value):
        return None if value == 0 else value

    cases.run(
        "#93 a live row on block 0 skipped as padding",
        s,
        Hooks(live=skipped),
        [Want(("write-missing", "unexplained"), row=0)],
        also=("write-missing", "unexplained"),
    )


def stale_tail(cases, _):
    """3: the tail of an index buffer holds the blocks of an earlier batch."""
    s = stream_of(5, Model(), [[1, 2, 3, 4]] * STEPS, rows=np.array([4, 2, 4, 4], np.int32))
    hooks = faults.inactive_works(1, 0, 2, 3, CONV)
    cases.run(
        "#12040 stale tail, conv state",
        s,
        hooks,
        [Want("stale-tail", step=1, layer=0, row=2, block=3)],
        check=first_is(step=1, layer=0, tap="conv_state", block=3),
    )
    hooks = faults.inactive_works(1, 0, 2, 3) + faults.inactive_works(1, 0, 3, 4)
    cases.run(
        "#12040 stale tail, two rows",
        s,
        hooks,
        [Want("stale-tail", step=1, layer=0, row=row, block=row + 1) for row in (2, 3)],
    )


def unwritten_outputs(cases, _):
    """5: the output of a skipped row is what the buffer held before."""
    s = stream_of(6, Model(), [[1, 0]] * STEPS)
    poison = faults.changes_output("conv_out", lambda v: np.full_like(v, FLOATS_OF_POISON[0]), 2, 0, 1)
    cases.run(
        "#30974 poison in a skipped row's output",
        s,
        poison,
        [Want("poison-read", step=2, layer=0, row=1)],
        check=first_is(step=2, layer=0, tap="conv_out", row=1),
    )
    declared = Model(inactive_conv_out="unwritten")
    s = stream_of(6, declared, [[1, 0]] * STEPS)
    poison = faults.changes_output("conv_out", lambda v: np.full_like(v, FLOATS_OF_POISON[0]), 2, 0, 1)
    cases.clean("#30974 declared unwritten: no finding", s, hooks=poison)


def shared_block(cases, checks):
    """6: two live requests on one block; in one step, and one after the other."""
    s = stream_of(7, Model(), [[2, 3]] * STEPS)
    run = run_engine(s)
    s.index[1] = 2
    path = write_trace(cases.path("shared"), s, run)
    checks.refused("#500 two rows name one block", ["explain", path], "block 2")

    def live(place, value):
        return 2 if place.row == 1 and place.t == 2 else value

    s = stream_of(8, Model(), [[2, 0], [2, 0], [0, 3], [2, 0]])
    cases.run(
        "#500 another request's step on this block", s, Hooks(live=live), [Want("wrong-block", step=2, row=1, block=2)]
    )


def wrong_column(cases, _):
    """7: a block table read with the wrong column size: the neighbour's block."""
    s = stream_of(9, Model(), [[1, 4]] * STEPS)
    cases.run(
        "#55507 row 0 reads row 1's block",
        s,
        faults.reads_block(2, 0, 0, 4),
        [Want("wrong-block", step=2, layer=0, row=0, block=4)],
    )
    cases.run(
        "#55507 every layer",
        s,
        faults.reads_block(2, None, 0, 4),
        [Want("wrong-block", step=2, row=0, block=4)],
        also=("wrong-block",),
    )  # a line for both layers or one each


REPORTS = [
    ("1", padded_graph),
    ("2", live_block_zero),
    ("3", stale_tail),
    ("5", unwritten_outputs),
    ("6", shared_block),
    ("7", wrong_column),
]
