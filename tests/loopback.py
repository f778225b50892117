"""Hosts to reach over ssh: a real sshd on loopback for a user of its own, with a fake trtexec."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import psutil

from patience import wait_until

TESTS = Path(__file__).parent
REPO = TESTS.parent
_SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")


def lacks() -> str:
    """Return why no sshd can be had here, "" if one can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "needs root, to run sshd for another user"
    missing = [
        tool for tool in ("ssh", "ssh-keygen", "useradd", "ps", "pkill") if not shutil.which(tool)
    ]
    missing += [] if _SSHD else ["sshd"]
    missing += [] if _python() else ["a Python of this version that other users may run"]
    return f"needs {', '.join(missing)}" if missing else ""


def _python() -> str:
    """Return an interpreter of this version that any user may run, "" for none."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, f"/usr/bin/{version}"):
        real = Path(path).resolve()
        if real.exists() and all(each.stat().st_mode & 0o001 for each in (real, *real.parents)):
            return path
    return ""


@dataclass(frozen=True, kw_only=True)
class Board:
    """A host by its name in an ssh_config; `tools` is the folder of its trtexec."""

    name: str
    user: str
    tools: Path
    port: int
    sshd: "subprocess.Popen[bytes]"

    def processes(self) -> list[str]:
        """Return the commands that its user runs."""
        asked = ["ps", "-u", self.user, "-o", "args="]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        return [line for line in found.stdout.splitlines() if "<defunct>" not in line]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Have nothing on it move on within the block; connections stay, and nobody answers."""
        top = psutil.Process(self.sshd.pid)
        processes = [top, *top.children(recursive=True)]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def cut(self) -> None:
        """Lose every connection, and answer none any more."""
        self.sshd.kill()
        self.sshd.wait()
        subprocess.run(["pkill", "-KILL", "-u", self.user, "-x", "sshd"], check=False)


@dataclass(frozen=True, kw_only=True)
class Boards:
    """Hosts of one ssh_config, each of another user; their folders lie in `base`."""

    home: Path
    base: Path
    each: list[Board]

    @property
    def known(self) -> Path:
        """The file of their host keys."""
        return self.home / "known_hosts"

    @property
    def options(self) -> dict[str, str]:
        """The options of the backend that reach all of them."""
        return {
            "host": ",".join(board.name for board in self.each),
            "folder": str(self.base),
            "ssh-config": str(self.home / "config"),
        }

    def flags(self, **instead: str) -> list[str]:
        """Return the flags that reach all of them."""
        pairs = ({**self.options, **instead}).items()
        options = (("--backend-option", f"{key}={value}") for key, value in pairs)
        return ["--backend", "remote", *(word for pair in options for word in pair)]

    def slow_down(self, bytes_s: int) -> None:
        """Have links to all of them carry so many bytes a second there."""
        link = self.home / "slow_link.py"
        link.write_text(_SLOW_LINK)
        config = self.home / "config"
        way = f" ProxyCommand {sys.executable} {link} {bytes_s} %p\n HostName"
        config.write_text(config.read_text().replace(" HostName", way))

    def set_shell(self, does: str) -> None:
        """Have the users of all of them log in by a script of sh."""
        shell = self.home / "shell"
        shell.write_text(f"#!/bin/sh\n{does}\n")
        shell.chmod(0o755)
        for board in self.each:
            subprocess.run(["usermod", "-s", str(shell), board.user], check=True)

    def left(self) -> list[str]:
        """Return what lies in their folder."""
        return sorted(path.name for path in self.base.iterdir())

    def clear(self) -> bool:
        """Tell whether nothing of a run is left, neither files nor processes."""
        return not self.left() and not any(board.processes() for board in self.each)


_SLOW_LINK = """\
import os, socket, sys, threading, time

def send():
    while content := os.read(0, 2048):
        link.sendall(content)
        time.sleep(len(content) / int(sys.argv[1]))
    link.shutdown(socket.SHUT_WR)

link = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
threading.Thread(target=send, daemon=True).start()
while content := link.recv(2048):
    os.write(1, content)
"""


@contextmanager
def boards(*names: str) -> Iterator[Boards]:
    """Yield hosts, each a user with an sshd; nothing of them stays."""
    # pytest keeps its folders to their owner.
    home = Path(mkdtemp(prefix="boards-"))
    home.chmod(0o755)
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", home / name], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    base = home / "base"
    base.mkdir()
    base.chmod(0o1777)
    found = Boards(home=home, base=base, each=[])
    try:
        for name in names:
            board = _board(home, name)
            found.each.append(board)
            with (home / "config").open("a") as stream:
                stream.write(
                    f"Host {name}\n HostName 127.0.0.1\n Port {board.port}\n"
                    f" User {board.user}\n IdentityFile {home / 'key'}\n IdentitiesOnly yes\n"
                    f" UserKnownHostsFile {found.known}\n"
                )
            with found.known.open("a") as stream:
                stream.write(f"[127.0.0.1]:{board.port} {(home / 'host_key.pub').read_text()}")
        yield found
    finally:
        for board in found.each:
            board.cut()
            subprocess.run(["pkill", "-KILL", "-u", board.user], check=False)
            wait_until(partial(_removed, board.user))
        shutil.rmtree(home)


def _removed(user: str) -> bool:
    gone = subprocess.run(["userdel", user], check=False, stderr=subprocess.DEVNULL)
    return gone.returncode == 0


def _board(home: Path, name: str) -> Board:
    user = f"pb{secrets.token_hex(4)}"
    # An account without a password is locked, which sshd refuses even with a key.
    made = ["useradd", "-M", "-d", "/", "-s", "/bin/sh", "-p", "*", user]
    subprocess.run(made, check=True)
    tools = home / f"{name}-bin"
    write_tool(tools)
    sshd, port = _begin_sshd(
        home / f"{name}.conf",
        f"ListenAddress 127.0.0.1\nHostKey {home / 'host_key'}\n"
        f"AuthorizedKeysFile {home / 'key.pub'}\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nPidFile none\nSetEnv PATH={tools}:/usr/bin:/bin\n",
    )
    return Board(name=name, user=user, tools=tools, port=port, sshd=sshd)


def _begin_sshd(conf: Path, settings: str) -> tuple["subprocess.Popen[bytes]", int]:
    """Return an sshd that listens, and its port: another one where a process took it meanwhile."""
    assert _SSHD is not None
    for _ in range(5):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        conf.write_text(f"Port {port}\n{settings}")
        sshd = subprocess.Popen([_SSHD, "-D", "-f", conf], stderr=subprocess.DEVNULL)
        wait_until(partial(_listens_or_ended, sshd))
        if sshd.poll() is None:
            return sshd, port
    raise AssertionError(f"{_SSHD} -D -f {conf} ends at once")


def _listens_or_ended(sshd: "subprocess.Popen[bytes]") -> bool:
    with suppress(psutil.Error):
        connections = psutil.Process(sshd.pid).net_connections()
        if any(psutil.CONN_LISTEN == each.status for each in connections):
            return True
    return sshd.poll() is not None


def write_tool(folder: Path, begins: str = "") -> None:
    """Write a trtexec for another user; `begins` are lines of sh before it does anything."""
    folder.mkdir(exist_ok=True)
    # Its standard library is the interpreter's own.
    others = [each for each in sys.path if "-packages" in each or Path(each).is_relative_to(REPO)]
    script = folder / "trtexec"
    script.write_text(
        f"#!/bin/sh\n{begins}\nPYTHONDONTWRITEBYTECODE=1 "
        f"PYTHONPATH='{':'.join([str(TESTS), *others])}' "
        f'exec {_python()} {TESTS / "fake_trtexec.py"} "$@"\n'
    )
    script.chmod(0o755)
