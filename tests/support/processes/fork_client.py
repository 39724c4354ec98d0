"""Run `foveate` as a fork of the server in `fork_server`: `python -IS fork_client.py SOCKET [ARGUMENTS]`.

With `-m MODULE` in front of the arguments it runs that module of the package. The command gets this process's
arguments, environment, working directory, umask, open files and terminal. Signals are passed on, and
this process ends as the command does. The name of this process in /proc is the id of the command's process. If
the server is not running, or cannot give the command everything that it would have here (see `traits`), this
process becomes `python -m foveate` instead.
"""

import fcntl
import marshal
import os
import resource
import signal
import socket
import sys
import termios

_FORWARDED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
# Users and groups, capabilities, and which signals are blocked or ignored.
_STATUS = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Cap", "SigBlk", "SigIgn")
# The interpreter, the dynamic loader and C libraries read these once, when a process starts.
READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "OPENBLAS_", "OMP_")


def traits() -> list[object]:
    """Describe what a fork of another process cannot take over: both processes must have the same."""
    with open("/proc/self/status", encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes long to import
        status = [line for line in file if line.startswith(_STATUS)]
    return [
        0 if leads_terminal() else _controlling_terminal(),
        status,
        os.getpriority(os.PRIO_PROCESS, 0),
        [resource.getrlimit(limit) for limit in _LIMITS],
        sorted(item for item in os.environ.items() if item[0].startswith(READ_AT_START)),
    ]


def leads_terminal() -> bool:
    """Tell whether this process leads the session at the terminal that is its standard input."""
    return os.getsid(0) == os.getpid() and os.isatty(0) and _controlling_terminal() == os.fstat(0).st_rdev


def _controlling_terminal() -> int:
    with open("/proc/self/stat", encoding="utf-8") as file:  # noqa: PTH123
        return int(file.read().rpartition(")")[2].split()[4])


def _release_terminal() -> None:
    """Let another session have the terminal. The kernel sends SIGHUP to the session that had it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fcntl.ioctl(0, termios.TIOCNOTTY)
    signal.signal(signal.SIGHUP, before)


def _open_files() -> list[int]:
    """Return the standard streams that are open, and other files that this process has inherited."""
    descriptors = []
    for descriptor in sorted(map(int, os.listdir("/proc/self/fd"))):  # noqa: PTH208
        try:
            os.fstat(descriptor)
        except OSError:  # the folder itself, which is closed by now
            continue
        descriptors.append(descriptor)
    return descriptors


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def main() -> None:
    _, path, *arguments = sys.argv
    files = _open_files()
    has_terminal = False
    server = socket.socket(socket.AF_UNIX)
    if server.fileno() < 3:  # the number of a closed stream
        server = socket.socket(fileno=fcntl.fcntl(server.detach(), fcntl.F_DUPFD_CLOEXEC, 3))
    try:
        server.connect(path)
        folder = os.getcwd()  # noqa: PTH109
        has_terminal = leads_terminal()
        order = marshal.dumps((arguments, dict(os.environ), folder, _umask(), files, has_terminal, traits()))
        if has_terminal:
            _release_terminal()
        socket.send_fds(server, [len(order).to_bytes(4)], files)
        server.sendall(order)
        child = int.from_bytes(server.recv(4))
    except OSError:
        child = 0
    if not child:
        server.close()
        if has_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        words = arguments if arguments[:1] == ["-m"] else ["-m", "foveate", *arguments]
        os.execv(sys.executable, [sys.executable, *words])
    for number in _FORWARDED_SIGNALS:  # also those that are ignored here: the command may want to handle them
        signal.signal(number, lambda number, _: os.kill(child, number))
    for descriptor in files:  # only the command has them now, so that readers see when it ends
        os.close(descriptor)
    with open("/proc/self/comm", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(str(child))
    code = int.from_bytes(server.recv(4), signed=True)
    if code < 0:
        if -code in _FORWARDED_SIGNALS:
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
