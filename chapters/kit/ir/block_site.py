"""Finds two sblocks of one scope: the loops around each, and everything that runs between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm.ir import Var
from tvm.s_tir import SBlock, SBlockRealize, Schedule, StmtSRef
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import BufferStore, For, SeqStmt, Stmt
from tvm_ffi import structural_equal

from chapters.kit.ir.rebuild import rebuild
from chapters.kit.ir.refuse import require
from chapters.kit.ir.region_cover import covers
from chapters.kit.ir.row_index import is_one
from chapters.kit.ir.tensor_ir import count, loads, mentions, summed_values, uses_pointers


@dataclass(frozen=True)
class Nest:
    """A block and what encloses it: `path` leads from the body of its scope down to its realize."""

    path: tuple[Stmt, ...]

    @property
    def realize(self) -> SBlockRealize:
        return self.path[-1]

    @property
    def block(self) -> SBlock:
        return self.realize.block

    @property
    def loops(self) -> list[For]:
        """The loops of the scope around the block, outermost first."""
        return [stmt for stmt in self.path if isinstance(stmt, For)]

    @property
    def is_staged(self) -> bool:
        """Whether its loops are to become a software pipeline, in which iterations overlap."""
        keys = [key for loop in self.loops for key in loop.annotations]
        return any(key.startswith("software_pipeline") for key in keys)


@dataclass(frozen=True)
class BlockSite:
    """Two blocks of one scope, `producer` before `consumer`.

    shared: the loops around both. span: the statements of their innermost common sequence, from the one that holds the
    producer to the one that holds the consumer. Whatever runs between the two in one iteration of the shared loops is
    in `span`, but for blocks in their own loops that cannot tell when they run (`_initializes_sums`, `_reads_results`).
    """

    scope_sref: StmtSRef
    producer: Nest
    consumer: Nest
    shared: list[For]
    span: list[Stmt]

    @property
    def scope(self) -> SBlock:
        return self.scope_sref.stmt


def locate(sch: Schedule, producer: SBlockRV, consumer: SBlockRV) -> BlockSite:
    """Find two blocks of `sch`.

    Raises ScheduleError unless they are two blocks of one scope, the producer before the consumer, with nothing but
    loops, sequences and blocks around and between them: no branch, no definition, no call outside a block.
    """
    scope_sref, first, last = _scope_sref(sch, producer), sch.get(producer), sch.get(consumer)
    same = scope_sref.same_as(_scope_sref(sch, consumer)) and not first.same_as(last)
    require(same, last, "it is not another block of the scope that contains the reduction")
    known, nests = [Nest(path) for path in block_paths(scope_sref.stmt.body)], []
    for block in (first, last):
        found = [nest for nest in known if nest.block.same_as(block)]
        require(bool(found), block, "something other than loops and sequences is around it")
        nests.append(found[0])
    paths = [nest.path for nest in nests]
    depth = next(i for i in range(len(paths[0])) if not paths[0][i].same_as(paths[1][i]))
    sequence = paths[0][depth - 1].seq
    begin, end = (_position(sequence, path[depth]) for path in paths)
    require(begin < end, last, "it stands before the reduction")
    span = list(sequence[begin : end + 1])
    other = "something other than loops and blocks is between the reduction and it"
    require(all(map(_only_loops_and_blocks, span)), last, other)
    shared = [stmt for stmt in paths[0][:depth] if isinstance(stmt, For)]
    _leave_out_independent(span, nests, shared)
    return BlockSite(scope_sref, *nests, shared, span)


def _scope_sref(sch: Schedule, block: SBlockRV) -> StmtSRef:
    sref = sch.get_sref(block).parent
    while sref is not None and not isinstance(sref.stmt, SBlock):
        sref = sref.parent
    require(sref is not None, sch.get(block), "it is the root of its function")
    return sref


def block_paths(stmt: Stmt, above: tuple[Stmt, ...] = ()) -> Iterator[tuple[Stmt, ...]]:
    """The statements from `stmt` down to the realize of each block that only loops and sequences lead to, in order."""
    path = (*above, stmt)
    if isinstance(stmt, SBlockRealize):
        yield path
    for child in _children(stmt):
        yield from block_paths(child, path)


def _children(stmt: Stmt) -> Sequence[Stmt]:
    if isinstance(stmt, SeqStmt):
        return stmt.seq
    return (stmt.body,) if isinstance(stmt, For) else ()


def _position(sequence: Sequence[Stmt], stmt: Stmt) -> int:
    return next(i for i, candidate in enumerate(sequence) if candidate.same_as(stmt))


def _only_loops_and_blocks(stmt: Stmt) -> bool:
    if isinstance(stmt, SBlockRealize):
        return True
    return isinstance(stmt, (For, SeqStmt)) and all(map(_only_loops_and_blocks, _children(stmt)))


# --- blocks in the loops of the two that cannot tell when they run --------------------------------


def _leave_out_independent(span: list[Stmt], nests: Sequence[Nest], shared: Sequence[For]) -> None:
    """Take out of `span` the blocks of its first and last statement that cannot tell when the two run."""
    first, last = nests
    if not all(isinstance(nest.block.body, BufferStore) for nest in nests):
        return
    before, after = (
        [Nest((*shared, *path)) for path in block_paths(stmt)] for stmt in (span[0], span[-1])
    )
    before = before[: next(i for i, n in enumerate(before) if n.realize.same_as(first.realize))]
    after = after[next(i for i, n in enumerate(after) if n.realize.same_as(last.realize)) + 1 :]
    gone = [nest for nest in before if _initializes_sums(nest, first, last.block.body.buffer)]
    gone += [nest for nest in after if _reads_results(nest, last)]

    def put(realize: SBlockRealize) -> list[SBlockRealize]:
        return [] if any(realize.same_as(nest.realize) for nest in gone) else [realize]

    if gone:
        span[0], span[-1] = rebuild(span[0], put), rebuild(span[-1], put)


def _initializes_sums(nest: Nest, reduction: Nest, output: Var) -> bool:
    """Whether the block stores, in one iteration of the loops around both, only sums that are still to be made in it.

    `decompose_reduction` leaves such a block. The sums must not be spread over several iterations.
    """
    around, store = _common_loops(nest, reduction), nest.block.body
    sums = reduction.block.body
    if not _is_simple(nest, around, output) or not store.buffer.same_as(sums.buffer):
        return False
    spread = any(mentions(summed_values(reduction.realize), loop.loop_var) for loop in around)
    places = (reduction.realize, reduction.loops), sums.indices, (nest.realize, nest.loops)
    return (
        not spread and not mentions(nest.realize, output) and covers(around, *places, store.indices)
    )


def _reads_results(nest: Nest, epilogue: Nest) -> bool:
    """Whether the block reads, in one iteration of the loops around both, only results that are already there.

    It writes nothing that the epilogue mentions. The next step of a chain of elementwise blocks is like that.
    """
    around, result = _common_loops(nest, epilogue), epilogue.block.body
    block, output = nest.block, result.buffer
    if not _is_simple(nest, around, output) or mentions(epilogue.realize, block.body.buffer):
        return False
    read = loads([block.body, block.init] if block.init is not None else block.body, output)
    declared = sum(region.source.same_as(output) for region in block.reads)
    ready = ((epilogue.realize, epilogue.loops), result.indices, (nest.realize, nest.loops))
    seen = all(covers(around, *ready, load.indices) for load in read)
    return seen and count(nest.realize, output) == len(read) + declared


def _is_simple(nest: Nest, around: Sequence[For], output: Var) -> bool:
    """Whether the block stores to one place, init included, and `output` does not decide how often it runs."""
    block, store, inner = nest.block, nest.block.body, nest.loops[len(around) :]
    if not isinstance(store, BufferStore) or block.match_buffers or uses_pointers(nest.realize):
        return False
    if block.init is not None:
        there = isinstance(block.init, BufferStore) and block.init.buffer.same_as(store.buffer)
        if not there or not structural_equal(block.init.indices, store.indices):
            return False
    steps = all(loop.step is None or is_one(loop.step) for loop in nest.loops)
    return steps and not mentions([[loop.min, loop.extent] for loop in inner], output)


def _common_loops(one: Nest, other: Nest) -> list[For]:
    """The loops around both."""
    return [loop for loop in one.loops if any(loop.same_as(same) for same in other.loops)]
