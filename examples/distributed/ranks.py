"""The processes of one run, and what they add up: through MPI from host memory, through NCCL from GPU memory."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, TypeVar

import numpy as np
from reader.errors import ReaderError
from reader.layers import Array

Value = TypeVar("Value")


class Ranks:
    """This process is number `rank` of `size` that all run the same program: NumPy arrays, added up by MPI."""

    xp: Any = np

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError where it finds no MPI library
            reason = str(error).splitlines()[0]
            raise ReaderError(
                f"the ranks talk through mpi4py and an MPI library ({reason}): pip install '.[distributed]'"
            ) from error
        self.mpi = MPI
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size

    def add(self, *parts: Array) -> list[Array]:
        """The sum over all ranks of each array, in new arrays of its shape: one message for all of them.

        The arrays have one dtype, and on every rank the same shapes. Every rank gets the same bits.
        """
        if self.size == 1:
            return list(parts)
        flat = self.xp.concatenate([self.xp.ravel(part) for part in parts])
        self._add_in_place(flat)
        found, at = [], 0
        for part in parts:
            size = math.prod(part.shape)
            found.append(flat[at : at + size].reshape(part.shape))
            at += size
        return found

    def _add_in_place(self, flat: Array) -> None:
        self.comm.Allreduce(self.mpi.IN_PLACE, flat)

    def gather(self, value: Value) -> list[Value]:
        """What each rank has, in the order of the ranks: small Python values."""
        return list(self.comm.allgather(value))

    def abort(self) -> None:
        """End all ranks: the others would wait for this one for ever."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(0.5)  # else mpiexec may end before it has passed on what was written last
        self.comm.Abort(1)


class NcclRanks(Ranks):
    """The same for CuPy arrays on this rank's GPU, which NCCL adds up; MPI gathers what is small.

    Not verified on GPUs: it has run with stand-ins alone.
    """

    def __init__(self, cupy: Any) -> None:
        super().__init__()
        self.xp = cupy
        here = self.comm.Split_type(self.mpi.COMM_TYPE_SHARED)  # the ranks on this machine
        devices = cupy.cuda.runtime.getDeviceCount()
        if here.size > devices:
            raise ReaderError(
                f"NCCL wants a GPU for each rank; this machine has {here.size} ranks and {devices} of these"
            )
        cupy.cuda.Device(here.rank).use()
        try:
            from cupyx.distributed import NCCLBackend
        except ImportError as error:
            raise ReaderError(f"ranks on GPUs talk through cupyx.distributed ({error})") from error
        self.backend = NCCLBackend
        self.nccl: Any = None

    def _add_in_place(self, flat: Array) -> None:
        if self.nccl is None:  # waits for all ranks, so not before all of them are known to be well
            # not init_process_group, whose way of choosing between MPI and a TCP server differs between versions
            self.nccl = self.backend(self.size, self.rank, use_mpi=True)
        self.nccl.all_reduce(flat, flat, "sum")
