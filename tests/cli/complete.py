#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
#
# complete.py bash|zsh FILE <CASES: types lines, and after each a tab, into that shell on a terminal, with the completion
# of FILE. Of each pair of lines of CASES the first is what is typed, and the second the words that this must make of it,
# as the shell would pass them to a command, joined by "|". Exits with 1 if one of them is something else.
import os
import pty
import select
import sys
import time

shell, path = sys.argv[1:]
cases = sys.stdin.read().splitlines()
start = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}[shell]
setup = {
    "bash": f"bind 'set enable-bracketed-paste off'; source '{path}'",
    "zsh": f"fpath=('{os.path.dirname(path)}' $fpath); autoload -Uz compinit; compinit -u -D; bindkey -e",
}[shell]
environment = dict(os.environ, TERM="dumb", PS1="$ ", INPUTRC="/dev/null", HISTFILE="/dev/null", COLUMNS="500")

pid, terminal = pty.fork()
if pid == 0:
    os.execvpe(start[0], start, environment)
deadline = time.monotonic() + 90
seen = b""


def await_text(text):
    global seen
    while text not in seen:
        if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            sys.exit(f"{shell} did not come to {text!r}; it printed: {seen!r}")
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            sys.exit(f"{shell} ended; it printed: {seen!r}")
    before, seen = seen.split(text, 1)
    return before


def send(text):
    os.write(terminal, text.encode())


# The quotes keep the echo of a line from looking like its output.
send(setup + "; echo re''ady\n")
await_text(b"ready")
failed = 0
for number, (line, wanted) in enumerate(zip(cases[::2], cases[1::2])):
    # A tab completes; control-A goes to the start of the line, where a command is put that shows what is there.
    send(line + "\t" + "\x01printf '<[%s]>\\n' \x05; echo do''ne" + f"{number}.\n")
    parts = await_text(f"done{number}.".encode()).split(b"<[")[1:]
    words = [part.split(b"]>\r\n")[0].decode() for part in parts if b"]>\r\n" in part and part[:2] != b"%s"]
    if "|".join(words) != wanted:
        print(f"{shell} makes of {line!r} {'|'.join(words)!r} and not {wanted!r}")
        failed = 1
send("exit\n")
os.waitpid(pid, 0)
sys.exit(failed)
