"""Program of the process that runs generated code: it locks itself, then runs what it is given.

Own module: it is started by its path, imports the standard library alone, and is done before the
first line of foreign code. docs/decisions/0023 says what each lock is for. Standard input holds a
`Job` as JSON; a line of JSON goes to standard output, with the locks that are `missing`.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
from typing import Any, TypedDict

MISSING_FILES = "files outside its folder"
MISSING_KERNEL = "the network, other processes and new ones"
MISSING_MEMORY = "memory"
MOST_FILES, MOST_FILE_BYTES, MOST_DETAIL = 64, 16 << 20, 500

_NO_NEW_PRIVS, _PARENT_DEATH, _SECCOMP, _FILTER_MODE = 38, 1, 22, 2
_CAPABILITIES_3, _DAC_READ_SEARCH = 0x20080522, 1 << 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_LEAST_LANDLOCK = 3
"""Linux 6.2: from there on a file that may be read can't be truncated."""
_READ_TREE, _READ_FILE, _READ_WRITE_FILE, _ALL_RIGHTS = 0b1101, 0b100, 0b110, (1 << 15) - 1

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_REFUSED = {
    # network; asyncio's socketpair stays
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "sendto": (44, 206),
    "io_uring_setup": (425, 425),
    # processes, other than threads
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "unshare": (272, 97),
    "setns": (308, 268),
    # other processes
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "ioprio_set": (251, 30),
    # what outlives the process
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the system, and what Landlock lets pass
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "open_by_handle_at": (304, 265),
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)
_THREAD = 0x10000
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _NOT_PERMITTED, _NOT_THERE = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


class Job(TypedDict):
    """Source to run, the limits, and whether it runs where a lock is missing."""

    source: str
    folder: str
    readable: list[str]
    time_limit_s: float
    memory_bytes: int
    needs_all_locks: bool


def close_locks(job: Job) -> list[str]:
    """Close every lock that this system has, and return what stays open."""
    is_linux = sys.platform == "linux"
    missing: list[str] = [] if is_linux else [MISSING_MEMORY]
    soft = max(1, int(job["time_limit_s"]) + 1)
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, soft),
        (resource.RLIMIT_FSIZE, MOST_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MOST_FILES),
    ):
        resource.setrlimit(limit, (most, most))
    if is_linux:
        resource.setrlimit(resource.RLIMIT_AS, (job["memory_bytes"], job["memory_bytes"]))
    library = ctypes.CDLL(None, use_errno=True) if is_linux else None
    if library is not None:
        library.prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
        library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    if library is None or not _lock_files(library, job["folder"], job["readable"]):
        missing.append(MISSING_FILES)
    if library is None or not (_drop_capabilities(library) and _lock_kernel(library)):
        missing.append(MISSING_KERNEL)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    return missing


def _drop_capabilities(library: Any) -> bool:
    """Give up what root alone may do: to set the clock, restart the machine, load modules, mount.

    Files that are allowed stay readable where they are another user's.
    """
    header, held = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    library.capget(header, held)
    effective, permitted = held[0] & _DAC_READ_SEARCH, held[1] & _DAC_READ_SEARCH
    left = (ctypes.c_uint32 * 6)(effective, permitted)
    return library.capset(header, left) == 0


def _lock_files(library: Any, folder: str, readable: list[str]) -> bool:
    """Allow reading below `readable` and everything below `folder`, by Landlock."""
    if library.syscall(_CREATE_RULESET, None, 0, 1) < _LEAST_LANDLOCK:
        return False
    handled = struct.pack("=Q", _ALL_RIGHTS)
    rules = library.syscall(_CREATE_RULESET, handled, len(handled), 0)
    allowed = [(path, _READ_TREE if os.path.isdir(path) else _READ_FILE) for path in readable]
    devices = [("/dev/null", _READ_WRITE_FILE), ("/dev/urandom", _READ_WRITE_FILE)]
    for path, rights in [*allowed, *devices, (folder, _ALL_RIGHTS)]:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if library.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0):
            return False
        os.close(place)
    is_locked = library.syscall(_RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return is_locked


def _lock_kernel(library: Any) -> bool:
    """Refuse system calls by seccomp: no sockets, no processes, nothing of other processes."""
    if platform.machine() not in _ARCHITECTURES:
        return False
    filters = make_filter(*_ARCHITECTURES[platform.machine()])
    code = b"".join(struct.pack("=HBBI", *one) for one in filters)
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(filters), ctypes.addressof(held))
    return library.prctl(_SECCOMP, _FILTER_MODE, program, 0, 0) == 0


def make_filter(column: int, architecture: int) -> list[tuple[int, int, int, int]]:
    """Return the instructions of the filter, each `(code, jump if true, jump if false, value)`."""
    refused = [numbers[column] for numbers in _REFUSED.values()]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _NOT_PERMITTED),
        (_EQUAL, 0, 1, _CLONE3[column]),
        (_RETURN, 0, 0, _NOT_THERE),
    ]
    for number in refused:
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _NOT_PERMITTED)]
    for number, test, value in (
        (_CLONE[column], _ANY_BIT, _THREAD),
        (_PRLIMIT[column], _EQUAL, 0),
    ):
        steps += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (test, 0, 1, value),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _NOT_PERMITTED),
        ]
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def run_source(source: str) -> str | None:
    """Run the source; return its exception in a line, None if it ended without one."""
    try:
        exec(source, {})
    except BaseException as error:  # noqa: BLE001 - SystemExit too is no pass
        try:
            return f"{type(error).__name__}: {error}"[:MOST_DETAIL]
        except BaseException:  # noqa: BLE001 - an exception of the program's own may not be printable
            return f"{type(error).__name__}: "[:MOST_DETAIL]  # never the word for a pass
    return None


def main() -> None:
    """Read the job, close the locks, run the source, and report."""
    job: Job = json.load(sys.stdin)
    report = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.chdir(job["folder"])
    missing = close_locks(job)
    found: dict[str, Any] = {"missing": missing}
    if not (missing and job["needs_all_locks"]):
        write, dump = os.write, json.dumps
        signal.setitimer(signal.ITIMER_REAL, job["time_limit_s"])
        found |= {"ended": True, "error": run_source(job["source"])}
        write(report, dump(found).encode())
    else:
        os.write(report, json.dumps(found).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
