#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""NIXL itself moves Gaudi memory between two processes, READ and WRITE, every byte checked.

Memory comes from libgaudi-direct through its C surface (ctypes) and is registered as VRAM_SEG; NIXL's own bindings and its
own UCX do the rest. Arguments: the folder of NIXL's bindings, libgaudi-direct.so, sizes.
"""
import ctypes
import multiprocessing
import os
import sys
import time

import numpy


class DeviceInfo(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("index", ctypes.c_uint32), ("generation", ctypes.c_uint32),
                ("module_id", ctypes.c_uint32), ("numa_node", ctypes.c_int32), ("memory_total", ctypes.c_uint64),
                ("memory_free", ctypes.c_uint64), ("bus_id", ctypes.c_char * 16)]


class MemoryInfo(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("base", ctypes.c_uint64), ("length", ctypes.c_uint64),
                ("generation", ctypes.c_uint64), ("device_index", ctypes.c_uint32)]


class DmaBuf(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("fd", ctypes.c_int), ("offset", ctypes.c_uint64),
                ("iova", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class Gaudi:
    """The functions of include/gaudi/gaudi.h."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.gaudi_last_error.restype = ctypes.c_char_p
        self.device = ctypes.c_void_p()
        self.call("gaudi_open", None, ctypes.byref(self.device))

    def call(self, name, *arguments):
        if getattr(self.library, name)(*arguments) != 0:
            raise RuntimeError(f"{name}: {self.library.gaudi_last_error().decode()}")

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("gaudi_allocate", self.device, ctypes.c_uint64(size), ctypes.byref(address))
        return address.value

    def write(self, address, data):
        self.call("gaudi_copy_in", self.device, ctypes.c_uint64(address), ctypes.c_void_p(data.ctypes.data), ctypes.c_uint64(data.nbytes))

    def read(self, address, size):
        data = numpy.zeros(size, numpy.uint8)
        self.call("gaudi_copy_out", self.device, ctypes.c_void_p(data.ctypes.data), ctypes.c_uint64(address), ctypes.c_uint64(size))
        return data

    def free(self, address):
        self.call("gaudi_free", self.device, ctypes.c_uint64(address))

    def filled(self, kind, name, *arguments):
        answer = kind(struct_size=ctypes.sizeof(kind))
        self.call(name, *arguments, ctypes.byref(answer))
        return answer

    def device_info(self):
        return self.filled(DeviceInfo, "gaudi_query_device", self.device)

    def memory_info(self, address):
        return self.filled(MemoryInfo, "gaudi_query_memory", ctypes.c_uint64(address))

    def export(self, address, size):
        return self.filled(DmaBuf, "gaudi_export", self.device, ctypes.c_uint64(address), ctypes.c_uint64(size))


def check_answers(gaudi, address, size):
    """What the C surface says of a device, of an allocation, and of its DMA-BUF, as Python sees it."""
    device, memory = gaudi.device_info(), gaudi.memory_info(address + size - 1)
    assert device.generation == 2 and device.memory_free + size <= device.memory_total, device.memory_free
    assert (memory.base, memory.length, memory.device_index) == (address, size, device.index), memory.base
    buffer = gaudi.export(address, size)
    try:
        assert (buffer.iova, buffer.length) == (address, size), buffer.iova
        assert not os.get_inheritable(buffer.fd), "the descriptor would go to other programs"
    finally:
        os.close(buffer.fd)
    try:
        gaudi.memory_info(1)
    except RuntimeError as why:
        assert "0x1" in str(why), why
    else:
        raise RuntimeError("address 1 is said to be Gaudi memory")


def pattern(seed, size):
    # A prime period: pages and pieces of any usual size differ from each other.
    period = ((numpy.arange(65537, dtype=numpy.uint32) * 40503 + seed * 97) >> 7).astype(numpy.uint8)
    return numpy.resize(period, size)


def expect(found, wanted, what):
    if not numpy.array_equal(found, wanted):
        at = int(numpy.argmax(found != wanted))
        raise RuntimeError(f"{what}: byte {at} is {found[at]}, expected {wanted[at]}")


def side(name, other, pipe, bindings, library, sizes):
    sys.path.insert(0, bindings)
    import _bindings as nixl

    gaudi = Gaudi(library)
    agent = nixl.nixlAgent(name, nixl.nixlAgentConfig(True))
    agent.createBackend("UCX", {})
    largest = max(sizes)
    address = gaudi.allocate(largest)
    check_answers(gaudi, address, largest)
    memory = nixl.nixlRegDList(nixl.VRAM_SEG, [(address, largest, 0, "")])
    agent.registerMem(memory)
    pipe.send((address, agent.getLocalMD()))
    remote, metadata = pipe.recv()
    agent.loadRemoteMD(metadata)

    def transfer(operation, size):
        here = nixl.nixlXferDList(nixl.VRAM_SEG, [(address, size, 0)])
        there = nixl.nixlXferDList(nixl.VRAM_SEG, [(remote, size, 0)])
        request = agent.createXferReq(operation, here, there, other)
        status = agent.postXferReq(request)
        deadline = time.monotonic() + 60
        while status == nixl.NIXL_IN_PROG:
            if time.monotonic() > deadline:
                raise RuntimeError("the transfer does not end")
            status = agent.getXferStatus(request)
        if status != nixl.NIXL_SUCCESS:
            raise RuntimeError(f"transfer: {status}")
        agent.releaseXferReq(request)

    moved = 0
    for size in sizes:
        if name == "active":
            gaudi.write(address, pattern(size, size))
            assert pipe.recv() == "ready"
            transfer(nixl.NIXL_WRITE, size)
            pipe.send("written")
            assert pipe.recv() == "made"
            transfer(nixl.NIXL_READ, size)
            expect(gaudi.read(address, size), pattern(size + 1, size), f"READ of {size} bytes")
            pipe.send("read")
        else:
            gaudi.write(address, pattern(size + 2, size))
            pipe.send("ready")
            assert pipe.recv() == "written"
            expect(gaudi.read(address, size), pattern(size, size), f"WRITE of {size} bytes")
            gaudi.write(address, pattern(size + 1, size))
            pipe.send("made")
            assert pipe.recv() == "read"
        moved += 2 * size
    pipe.send("end")
    pipe.recv()
    agent.deregisterMem(memory)
    del agent
    gaudi.free(address)
    print(f"{name}: {moved} bytes, all right", flush=True)


def main():
    bindings, library = sys.argv[1:3]
    sizes = [int(size) for size in sys.argv[3:]] or [4096, 1 << 20, 5 << 20]
    multiprocessing.set_start_method("fork")  # before either side has loaded anything
    here, there = multiprocessing.Pipe()
    passive = multiprocessing.Process(target=side, args=("passive", "active", there, bindings, library, sizes))
    passive.start()
    there.close()
    try:
        side("active", "passive", here, bindings, library, sizes)
    finally:
        here.close()
        passive.join(60)
    return passive.exitcode


if __name__ == "__main__":
    sys.exit(main())
