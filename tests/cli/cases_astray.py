"""What went to the wrong place or came at the wrong time: events, rows that changed places, writes to blocks that nobody names;
for explain_cases.py."""

import toy_faults as faults
from explain_case import ABSENT, Case, Want, block_of, row_of, says, unused
from toy_faults import BOTH, CONV, REC
from toy_step import Model
from toy_trace import make_stream, stream_of


def events_astray():
    """A reset or load that came after the step's rows, or went to another block."""
    for seed, second, layer, snapshots in [(46, "zero", None, "every"), (47, "load", 1, "fifth")]:
        s = make_stream(seed, reuse=True, second=second)
        block = block_of(s, 3)
        yield Case(
            f"reset-missing, {second} too late {seed}",
            s,
            faults.event_late(4, block, layer),
            [Want("reset-missing", step=4, block=block, layer=ABSENT if layer is None else layer)],
            snapshots,
            check=says("came after the rows of step 4, not before"),
        )
    for seed, second, layer in [(48, "zero", None), (49, "load", 0)]:
        s = make_stream(seed, reuse=True, second=second)
        block, other = block_of(s, 3), unused(s)
        yield Case(
            f"wrong-block, {second} went elsewhere {seed}",
            s,
            faults.event_elsewhere(4, block, other, layer),
            [Want("wrong-block", step=4, block=other, layer=ABSENT if layer is None else layer)],
            check=says(f"of block {block} went to block {other} instead"),
        )


def exchanged():
    """Two rows of a step that took each other's blocks: each has a line."""
    for seed, layer, reads, snapshots in [(65, 0, True, "every"), (66, 1, False, "every"), (67, 1, True, "last")]:
        s = make_stream(seed)
        rows = (row_of(s, 0), row_of(s, 1))
        blocks = [int(s.index[1, row]) for row in rows]
        yield Case(
            f"wrong-block, two rows exchanged {seed}",
            s,
            faults.swaps_blocks(1, layer, rows, reads),
            [Want("wrong-block", step=1, layer=layer, row=rows[i], block=blocks[1 - i]) for i in (0, 1)],
            snapshots,
        )


def strays():
    """Writes to a block that no row and no event names before."""
    for seed, parts in [(68, BOTH), (69, REC), (70, CONV)]:
        s = stream_of(seed, Model(), [[1, 2], [1, 2], [2, 1], [1, 2]], start="zero")
        yield Case(
            f"wrong-block, a block that nobody names {seed}",
            s,
            faults.writes_block(1, 1, 0, 4, parts),
            [Want("wrong-block", step=1, layer=1, row=0, block=4)],
        )


def inactive_record():
    """One bit of the record of a row that has no block: nothing is looked for in a window that is not there."""
    s = make_stream(583)
    row = row_of(s, 2)

    def change(run, _):
        run.taps[1]["conv_out"][2, row] = faults.flip(run.taps[1]["conv_out"][2, row], 5, 20)

    yield Case(
        "memory-corruption, the record of an inactive row",
        s,
        None,
        [Want("memory-corruption", step=2, layer=1, row=row)],
        change=change,
    )


GROUPS = [events_astray, exchanged, strays, inactive_record]
