#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
#
# complete.py bash|zsh FILE LINE: types LINE and a tab into that shell on a terminal, with the completion of FILE, and
# prints the words of the line that results, as the shell would pass them to a command, one per line.
import os
import pty
import select
import sys
import time

shell, path, line = sys.argv[1:]
start = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}[shell]
setup = {
    "bash": f"bind 'set enable-bracketed-paste off'; source '{path}'",
    "zsh": f"fpath=('{os.path.dirname(path)}' $fpath); autoload -Uz compinit; compinit -u -D; bindkey -e; "
    "unsetopt beep; zstyle ':completion:*' use-compctl false",
}[shell]
environment = dict(os.environ, TERM="dumb", PS1="$ ", INPUTRC="/dev/null", HISTFILE="/dev/null", COLUMNS="500")

pid, terminal = pty.fork()
if pid == 0:
    os.execvpe(start[0], start, environment)
deadline = time.monotonic() + 30
seen = b""


def await_text(text):
    global seen
    while text not in seen:
        if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            sys.exit(f"complete.py: {shell} did not come to {text!r}; it printed: {seen!r}")
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            sys.exit(f"complete.py: {shell} ended; it printed: {seen!r}")
    before, seen = seen.split(text, 1)
    return before


def send(text):
    os.write(terminal, text.encode())


# The quotes keep the echo of the line from looking like its output.
send(setup + "; echo re''ady\n")
await_text(b"ready")
# A tab completes; control-A goes to the start of the line, where a command is put that shows what is there.
send(line + "\t")
send("\x01printf '<[%s]>\\n' \x05; echo do''ne\n")
words = await_text(b"done").split(b"<[")
for word in words[1:]:
    # What stands before the first line end is a word, unless it is the echo of the line.
    if b"]>\r\n" in word and not word.startswith(b"%s"):
        print(word.split(b"]>\r\n")[0].decode())
send("exit\n")
os.waitpid(pid, 0)
